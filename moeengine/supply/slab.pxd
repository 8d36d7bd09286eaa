from libc.stdint cimport int64_t

cdef class Slab:
    cdef char *base              # 2 MB aligned; NULL when closed
    cdef void *reserved          # what mmap gave
    cdef size_t reserved_bytes
    cdef readonly int64_t n_bytes
