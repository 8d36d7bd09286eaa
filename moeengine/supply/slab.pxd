from libc.stdint cimport int64_t

cdef extern from "<pthread.h>" nogil:
    ctypedef unsigned long pthread_t

cdef struct Span:
    char *base
    size_t n
    int stop                     # not 0: leave it

cdef class Slab:
    cdef char *base              # 2 MB aligned; NULL when closed
    cdef void *reserved          # what mmap gave
    cdef size_t reserved_bytes
    cdef readonly int64_t n_bytes
    cdef Span span               # what the thread brings in
    cdef pthread_t thread
    cdef int thread_of           # process that it runs in; 0: there is none
