from libc.stdint cimport int64_t

cdef extern from "page_maker.h" nogil:
    ctypedef struct moe_page_maker:
        pass
    void moe_page_maker_start(moe_page_maker *m, char *base, size_t n_bytes)
    void moe_page_maker_stop(moe_page_maker *m)

from moeengine.kernels.region cimport Region

cdef class Slab:
    cdef char *base              # 2 MB aligned; NULL when closed
    cdef Region region           # what it lies in; None when closed
    cdef moe_page_maker pages
    cdef readonly int64_t n_bytes
