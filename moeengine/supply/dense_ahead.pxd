from libc.stdint cimport int64_t

cdef struct DenseRange:
    # Other weights that are left to the page cache, of one tensor.
    const char *at
    int64_t offset, n
    int fd

cdef struct DenseAhead:
    DenseRange *ranges       # in the order in which passes come to them; NULL: nothing is announced
    int64_t *first           # (n_tiers + 1): tier i announces ranges[first[i]] .. ranges[first[i + 1] - 1]
    int64_t n_announced

cdef int dense_ahead_init(DenseAhead *d, model_at, list layers) except -1
cdef void dense_ahead_free(DenseAhead *d) noexcept nogil
cdef void announce_dense(DenseAhead *d, int64_t i) noexcept nogil
