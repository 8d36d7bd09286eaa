from libc.stdint cimport int64_t

from moeengine.graph.block cimport Pass

cdef enum:
    MAX_TAPS_ = 16

cdef struct CausalConv:
    int64_t n_channels, n_taps  # taps: the current token included
    const float *w              # (taps, channels)
    const float *bias           # (channels,) or NULL
    int64_t state_offset        # in Pass.recurrent, floats: the last rows, (taps - 1, channels), the oldest first

cdef void convolve_channels(const CausalConv *v, Pass *p, const float *rows, int64_t c, int64_t n, float *y,
                            int64_t y_stride) noexcept nogil
