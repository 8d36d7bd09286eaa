"""A causal convolution of each channel by itself, then SiLU; what it needs of the tokens before a chunk is recurrent state."""
from libc.stdint cimport int64_t
from libc.string cimport memcpy

from moeengine.graph.block cimport Pass

MAX_TAPS = MAX_TAPS_


cdef void convolve_channels(const CausalConv *v, Pass *p, const float *rows, int64_t c, int64_t n, float *y,
                            int64_t y_stride) noexcept nogil:
    """y (T, n), its rows y_stride floats apart, from channels c .. c + n - 1 of rows (T, channels); keeps the last of these for the next chunk."""
    cdef int64_t C = v.n_channels, T = p.n_tokens, before = v.n_taps - 1, t, i, r
    cdef float *kept = p.recurrent + v.state_offset + c
    cdef const float *earlier = kept
    cdef const float *bias = v.bias + c if v.bias != NULL else NULL
    cdef const float *x[MAX_TAPS_]
    for t in range(T):
        for i in range(v.n_taps):
            r = t - before + i
            x[i] = earlier + (before + r) * C if r < 0 else rows + r * C + c
        p.isa.conv_silu(<size_t>n, <size_t>v.n_taps, x, v.w + c, <size_t>C, bias, y + t * y_stride)
    for i in range(before):
        r = T - before + i
        memcpy(kept + i * C, earlier + (before + r) * C if r < 0 else rows + r * C + c, <size_t>n * sizeof(float))
