"""What layers with a matrix a head as their state share."""
from libc.math cimport expf, logf, sqrtf
from libc.stdint cimport int64_t

from moeengine.kernels.table cimport moe_isa

cdef enum:
    UNIT_ROWS = 32        # of a head's state, a unit of work


cdef inline float softplus(float x) noexcept nogil:
    return x if x > <float>20 else logf(<float>1 + expf(x))


cdef inline float sigmoid(float x) noexcept nogil:
    return <float>1 / (<float>1 + expf(-x))


cdef inline void unit_rows(const moe_isa *isa, int64_t n_rows, int64_t n, float eps, float *x) noexcept nogil:
    """x (n_rows, n) = x / max(|x|, eps), row by row, the way llama.cpp computes it."""
    cdef int64_t t
    for t in range(n_rows):
        isa.rms_norm(<size_t>n, x + t * n, NULL, eps / <float>n, x + t * n)
        isa.scale(<size_t>n, <float>1 / sqrtf(<float>n), x + t * n, x + t * n)
