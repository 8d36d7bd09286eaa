from libc.stdint cimport int64_t


cdef class RecurrentState:
    cdef float *live          # (n,) as the layers lay it out; changed in place by a pass
    cdef float *kept          # (n,) the copy
    cdef readonly int64_t n   # 0: no layer is recurrent
    cdef readonly int64_t n_live     # tokens that `live` has seen; -1: a pass broke off
    cdef readonly int64_t n_kept     # tokens that the copy has seen; 0: there is none, zeros are the state of no token

    @staticmethod
    cdef RecurrentState new(float *live, int64_t n)
    cpdef int64_t n_ready(self, int64_t n_past)
    cdef int begin(self, int64_t n_past, int64_t n_tokens) except -1
    cdef void take_kept(self) noexcept
    cdef void end(self, int64_t n_past) noexcept
    cdef void replaced(self, int64_t n_past) noexcept
