"""A Mamba-1 layer in the place of attention: norm, projection, causal convolution, scan, gate, output.

What a layer knows of the tokens before a chunk is a state of fixed size (Pass.recurrent): the last inputs of the
convolution, then N rows of as many values as there are channels. Channels do not see each other: some of them are a unit of
work whose tokens follow one another, so the state is the same bytes for every cut.
Between convolution and output Pass.wide holds the rows, Pass.k what they say of time steps, b and c, Pass.q the time steps.
"""
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport calloc, free

from moeengine.graph.block cimport Block, Linear, Pass, add_residual, cancelled, linear, norm_rows, quantize_rows
from moeengine.graph.causal_conv cimport CausalConv, convolve_channels
from moeengine.graph.recurrent_heads cimport softplus
from moeengine.graph.weights cimport Vector, Weight
from moeengine.kernels.table cimport moe_selective, moe_x_row_bytes
from moeengine.kernels.threads cimport team_barrier, team_claim

cdef enum:
    UNIT_CHANNELS = 64

cdef struct Mamba:
    int64_t n_embd, n_inner, dim, n_rank    # I channels, N values of a state each, R of the time step before its projection
    float eps
    const float *block_norm     # (E,)
    Linear projections[2]       # x, z
    CausalConv conv
    Linear x_proj               # (R + 2 N, I): time step, b and c of a row
    const float *dt_norm        # (R,)
    const float *b_norm         # (N,)
    const float *c_norm         # (N,)
    Linear dt_proj              # (I, R)
    const float *a              # (N, I), negative
    const float *skip           # (I,)
    Linear out
    int64_t state_offset        # of the states in Pass.recurrent, floats
    unsigned formats


cdef inline int64_t n_said(const Mamba *m) noexcept nogil:
    """Values a token of Pass.k."""
    return m.n_rank + 2 * m.dim


cdef void convolve(const Mamba *m, Pass *p) noexcept nogil:
    cdef int64_t unit, c
    while True:
        unit = team_claim(p.team, (m.n_inner + UNIT_CHANNELS - 1) // UNIT_CHANNELS)
        if unit < 0:
            break
        if not cancelled(p):
            c = unit * UNIT_CHANNELS
            convolve_channels(&m.conv, p, p.q, c, min(<int64_t>UNIT_CHANNELS, m.n_inner - c), p.wide + c, m.n_inner)
    team_barrier(p.team)


cdef void product(Pass *p, const Linear *w, const float *x, int64_t x_stride, float *out) noexcept nogil:
    """out (T, rows) = w of the rows of x, x_stride floats apart."""
    cdef const uint8_t *rows[1]
    cdef size_t row_bytes[1]
    cdef float *to[1]
    quantize_rows(p, x, p.n_tokens, w.n_in, <size_t>x_stride, w.type.x_format, p.aq)
    rows[0], row_bytes[0], to[0] = p.aq, moe_x_row_bytes(p.isa, w.type.x_format, <size_t>w.n_in), out
    linear(p, w, 1, rows, row_bytes, to, p.n_tokens)


cdef void norm_said(const Mamba *m, Pass *p) noexcept nogil:
    cdef int64_t t
    cdef float *row
    while True:
        t = team_claim(p.team, p.n_tokens)
        if t < 0:
            break
        row = p.k + t * n_said(m)
        p.isa.rms_norm(<size_t>m.n_rank, row, m.dt_norm, m.eps, row)
        p.isa.rms_norm(<size_t>m.dim, row + m.n_rank, m.b_norm, m.eps, row + m.n_rank)
        p.isa.rms_norm(<size_t>m.dim, row + m.n_rank + m.dim, m.c_norm, m.eps, row + m.n_rank + m.dim)
    team_barrier(p.team)


cdef void scan(const Mamba *m, Pass *p) noexcept nogil:
    """The rows of p.wide become what the scan gives."""
    cdef int64_t I = m.n_inner, unit, first, t, i
    cdef float *dt
    cdef moe_selective s
    s.dim, s.n_tokens, s.row_stride, s.x_stride, s.b_stride = m.dim, p.n_tokens, I, I, n_said(m)
    s.b, s.c = p.k + m.n_rank, p.k + m.n_rank + m.dim
    while True:
        unit = team_claim(p.team, (I + UNIT_CHANNELS - 1) // UNIT_CHANNELS)
        if unit < 0:
            break
        if cancelled(p):
            continue
        first = unit * UNIT_CHANNELS
        s.n_channels = <size_t>min(<int64_t>UNIT_CHANNELS, I - first)
        for t in range(p.n_tokens):
            dt = p.q + t * I + first
            for i in range(<int64_t>s.n_channels):
                dt[i] = softplus(dt[i])
        s.state, s.a, s.skip = p.recurrent + m.state_offset + first, m.a + first, m.skip + first
        s.x, s.dt = p.wide + first, p.q + first
        p.isa.selective_scan(&s)
    team_barrier(p.team)


cdef void apply_gates(const Mamba *m, Pass *p) noexcept nogil:
    """p.wide *= silu(z). Ends with a barrier."""
    cdef int64_t t, I = m.n_inner
    while True:
        t = team_claim(p.team, p.n_tokens)
        if t < 0:
            break
        p.isa.silu_mul(<size_t>I, p.v + t * I, p.wide + t * I, p.wide + t * I)
    team_barrier(p.team)


cdef void mamba_run(void *state, Pass *p, int ith, int nth) noexcept nogil:
    cdef const Mamba *m = <const Mamba *>state
    cdef const uint8_t *x[2]
    cdef size_t x_stride[2]
    cdef float *out[2]
    cdef int i, f
    norm_rows(p, m.block_norm, m.eps, m.formats, m.n_embd)
    for i in range(2):
        f = m.projections[i].type.x_format
        x[i] = p.xq[f]
        x_stride[i] = moe_x_row_bytes(p.isa, f, <size_t>m.n_embd)
    out[0] = p.q
    out[1] = p.v
    linear(p, m.projections, 2, x, x_stride, out, p.n_tokens)
    convolve(m, p)
    product(p, &m.x_proj, p.wide, m.n_inner, p.k)
    norm_said(m, p)
    product(p, &m.dt_proj, p.k, n_said(m), p.q)
    scan(m, p)
    apply_gates(m, p)
    product(p, &m.out, p.wide, m.n_inner, p.out)
    add_residual(p, m.n_embd, NULL)


cdef class MambaBlock(Block):
    """x += out(scan(conv(x')) * silu(z)), x' and z projections of norm(x); time step, b and c of the scan of its own input.

    I = inner values, N = values of a channel's state, R = rank of the time step.

    Parameters
    ----------
    block_norm : Vector (E,)
    projections : list of Weight     x' and z, (I, E) each
    conv, conv_bias : Vector (taps, I), (I,)
    x_proj : Weight (R + 2 N, I)     time step, b and c
    dt_norm, b_norm, c_norm : Vector (R,), (N,), (N,)
    dt_proj : Weight (I, R)
    a : Vector (N, I)                factor of the time step
    skip : Vector (I,)               share of x' that goes around the state
    out : Weight (E, I)
    state_offset : int               floats of all earlier layers in Pass.recurrent
    """

    def __init__(self, *, Vector block_norm, list projections, Vector conv, Vector conv_bias, Weight x_proj, Vector dt_norm,
                 Vector b_norm, Vector c_norm, Weight dt_proj, Vector a, Vector skip, Weight out, int n_taps, float eps,
                 int64_t state_offset):
        cdef Mamba *m = <Mamba *>calloc(1, sizeof(Mamba))
        if m == NULL:
            raise MemoryError
        self.state = m
        self.run = mamba_run
        self.keep = [block_norm, projections, conv, conv_bias, x_proj, dt_norm, b_norm, c_norm, dt_proj, a, skip, out]
        m.n_embd, m.n_inner, m.dim, m.n_rank, m.eps = out.linear.n_rows, out.linear.n_in, b_norm.size, dt_norm.size, eps
        m.conv.n_channels, m.conv.n_taps, m.conv.w, m.conv.bias = m.n_inner, n_taps, conv.data, conv_bias.data
        m.conv.state_offset, m.state_offset = state_offset, state_offset + (n_taps - 1) * m.n_inner
        for i in range(2):
            m.projections[i] = (<Weight?>projections[i]).linear
            m.formats |= 1u << m.projections[i].type.x_format
        m.x_proj, m.dt_proj, m.out = x_proj.linear, dt_proj.linear, out.linear
        m.block_norm, m.dt_norm, m.b_norm, m.c_norm = block_norm.data, dt_norm.data, b_norm.data, c_norm.data
        m.a, m.skip = a.data, skip.data

    def __dealloc__(self):
        free(self.state)
