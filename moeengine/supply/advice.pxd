from libc.stdint cimport int64_t

# Whether n bytes of a mapping are in memory, every page.
cdef bint is_resident(const char *at, int64_t n) noexcept nogil
