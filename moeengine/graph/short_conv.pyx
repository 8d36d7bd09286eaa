"""A gated short convolution in the place of attention: norm, projection to gates and inputs, causal convolution, output.

What such a layer knows of the tokens before a chunk are the last gated inputs (Pass.recurrent), as many as the convolution
has taps before the current one. A unit of work is some channels; their tokens follow one another, so no cut of a prompt
shows in the result.
"""
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from moeengine.graph.block cimport Block, Linear, Pass, add_residual, cancelled, linear, norm_rows, quantize_rows
from moeengine.graph.weights cimport Vector, Weight
from moeengine.kernels.table cimport moe_x_row_bytes
from moeengine.kernels.threads cimport team_barrier, team_claim

cdef enum:
    MAX_TAPS_ = 16
    UNIT_CHANNELS = 128   # a unit of work
MAX_TAPS = MAX_TAPS_


cdef struct ShortConv:
    int64_t n_embd, n_taps
    float eps
    const float *attn_norm      # (E,)
    Linear in_proj              # (3 E, E): gates of the input, gates of the result, inputs
    const float *conv           # (taps, E)
    Linear out_proj
    int64_t state_offset        # of this layer in Pass.recurrent, floats
    unsigned formats


cdef void convolve_channels(const ShortConv *s, Pass *p, int64_t c, int64_t n) noexcept nogil:
    """Channels c .. c + n - 1 of all tokens: rows of p.wide, (T, 3, E), to results in p.attn; keeps the last inputs."""
    cdef int64_t E = s.n_embd, T = p.n_tokens, before = s.n_taps - 1, t, i, r
    cdef float *kept = p.recurrent + s.state_offset + c         # (taps - 1, E), the oldest first
    cdef float *row = p.wide + c
    cdef const float *x[MAX_TAPS_]
    for t in range(T):
        p.isa.mul(<size_t>n, row, row + 2 * E, row)
        for i in range(s.n_taps):
            r = t - before + i
            x[i] = kept + (before + r) * E if r < 0 else p.wide + r * 3 * E + c
        p.isa.conv_mul(<size_t>n, <size_t>s.n_taps, x, s.conv + c, <size_t>E, row + E, p.attn + t * E + c)
        row += 3 * E
    for i in range(before):
        r = T - before + i
        memcpy(kept + i * E, kept + (before + r) * E if r < 0 else p.wide + r * 3 * E + c, <size_t>n * sizeof(float))


cdef void convolve(const ShortConv *s, Pass *p) noexcept nogil:
    cdef int64_t unit, c
    while True:
        unit = team_claim(p.team, (s.n_embd + UNIT_CHANNELS - 1) // UNIT_CHANNELS)
        if unit < 0:
            break
        c = unit * UNIT_CHANNELS
        if not cancelled(p):
            convolve_channels(s, p, c, min(<int64_t>UNIT_CHANNELS, s.n_embd - c))
    team_barrier(p.team)


cdef void short_conv_run(void *state, Pass *p, int ith, int nth) noexcept nogil:
    cdef const ShortConv *s = <const ShortConv *>state
    cdef int64_t T = p.n_tokens, E = s.n_embd
    cdef const uint8_t *x = p.xq[s.in_proj.type.x_format]
    cdef size_t x_stride = moe_x_row_bytes(p.isa, s.in_proj.type.x_format, <size_t>E)
    cdef float *out = p.wide
    norm_rows(p, s.attn_norm, s.eps, s.formats, E)
    linear(p, &s.in_proj, 1, &x, &x_stride, &out, T)

    convolve(s, p)

    quantize_rows(p, p.attn, T, E, <size_t>E, s.out_proj.type.x_format, p.aq)
    x = p.aq
    x_stride = moe_x_row_bytes(p.isa, s.out_proj.type.x_format, <size_t>E)
    out = p.out
    linear(p, &s.out_proj, 1, &x, &x_stride, &out, T)
    add_residual(p, E, NULL)


cdef class ShortConvBlock(Block):
    """x += out_proj(c * conv(b * h)) with b, c and h the three parts of in_proj(norm(x)).

    Parameters
    ----------
    attn_norm : Vector (E,)
    in_proj : Weight (3 E, E)
    conv : Vector (taps, E)        the oldest tap first, the current token last; up to MAX_TAPS
    out_proj : Weight (E, E)
    state_offset : int             floats of all earlier layers in Pass.recurrent; this layer has (taps - 1) E
    """

    def __init__(self, *, Vector attn_norm, Weight in_proj, Vector conv, Weight out_proj, int n_taps, float eps,
                 int64_t state_offset):
        cdef ShortConv *s = <ShortConv *>calloc(1, sizeof(ShortConv))
        if s == NULL:
            raise MemoryError
        self.state = s
        self.run = short_conv_run
        self.keep = [attn_norm, in_proj, conv, out_proj]
        s.n_embd, s.n_taps, s.eps, s.state_offset = in_proj.linear.n_in, n_taps, eps, state_offset
        s.attn_norm, s.conv = attn_norm.data, conv.data
        s.in_proj, s.out_proj = in_proj.linear, out_proj.linear
        s.formats = 1u << s.in_proj.type.x_format

    def __dealloc__(self):
        free(self.state)
