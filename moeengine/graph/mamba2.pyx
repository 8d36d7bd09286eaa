"""A Mamba-2 layer in the place of attention: norm, one projection, causal convolution, scan, gated norm, output.

What a layer knows of the tokens before a chunk is a state of fixed size (Pass.recurrent), as a gated delta net's is:
the last projections, which the convolution needs, and a matrix a head; delta_net.pyx says how it is cut and laid out.
Between convolution and output norm heads, then the groups' B and C, lie one after the other, each (T, dim), in Pass.wide.
"""
from libc.math cimport expf
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport calloc, free

from moeengine.graph.block cimport Block, Linear, Pass, Residual, add_residual, cancelled, linear, norm_rows, residual_init
from moeengine.graph.causal_conv cimport CausalConv, convolve_channels
from moeengine.graph.recurrent_heads cimport UNIT_ROWS, softplus
from moeengine.graph.weights cimport Vector, Weight
from moeengine.kernels.table cimport moe_ssm, moe_x_row_bytes
from moeengine.kernels.threads cimport team_barrier, team_claim

cdef struct Mamba:
    int64_t n_embd, n_head, head_dim, n_group, dim
    float eps
    Residual residual
    const float *block_norm     # (E,)
    Linear projections[3]       # z (I rows); what is convolved: x (I), B and C (G dim each); dt (H)
    CausalConv conv             # of x, B and C
    const float *dt_bias        # (H,)
    const float *a              # (H,), negative
    const float *skip           # (H,) what of x goes around the state
    const float *norm           # (I,), a norm a group
    Linear out
    int64_t state_offset        # of the heads' matrices in Pass.recurrent, floats
    unsigned formats


cdef inline int64_t inner(const Mamba *m) noexcept nogil:
    return m.n_head * m.head_dim


cdef float *group_rows(const Mamba *m, Pass *p, int64_t i) noexcept nogil:
    """(T, dim): B of group i, or C of group i - G."""
    return p.wide + (inner(m) + i * m.dim) * p.n_tokens


cdef float *gates_of(const Mamba *m, Pass *p, int64_t head) noexcept nogil:
    """(2, T): what a head keeps of its state, and its time step, for every token."""
    return p.wide + (m.conv.n_channels + 2 * head) * p.n_tokens


cdef void gate_head(const Mamba *m, Pass *p, int64_t head) noexcept nogil:
    cdef int64_t T = p.n_tokens, t
    cdef float *gates = gates_of(m, p, head)
    cdef float x
    for t in range(T):
        x = softplus(p.k[t * m.n_head + head] + m.dt_bias[head])
        gates[t] = expf(x * m.a[head])
        gates[T + t] = x


cdef void convolve(const Mamba *m, Pass *p) noexcept nogil:
    cdef int64_t unit, i
    while True:
        unit = team_claim(p.team, m.n_head + 2 * m.n_group)
        if unit < 0:
            break
        if cancelled(p):
            continue
        if unit < m.n_head:
            convolve_channels(&m.conv, p, p.q, unit * m.head_dim, m.head_dim, p.wide + unit * m.head_dim * p.n_tokens,
                              m.head_dim)
            gate_head(m, p, unit)
        else:
            i = unit - m.n_head
            convolve_channels(&m.conv, p, p.q, inner(m) + i * m.dim, m.dim, group_rows(m, p, i), m.dim)
    team_barrier(p.team)


cdef void scan(const Mamba *m, Pass *p) noexcept nogil:
    """What the heads put in becomes what they give, in p.wide."""
    cdef int64_t T = p.n_tokens, D = m.head_dim, n_parts = (D + UNIT_ROWS - 1) // UNIT_ROWS, unit, head, group, row
    cdef float *state = p.recurrent + m.state_offset
    cdef moe_ssm s
    s.dim = <size_t>m.dim
    s.n_tokens = <size_t>T
    s.x_stride = <size_t>D
    while True:
        unit = team_claim(p.team, m.n_head * n_parts)
        if unit < 0:
            break
        if cancelled(p):
            continue
        head, row = unit // n_parts, unit % n_parts * UNIT_ROWS
        group = head // (m.n_head // m.n_group)
        s.n_rows = <size_t>min(<int64_t>UNIT_ROWS, D - row)
        s.state = state + (head * D + row) * m.dim
        s.b = group_rows(m, p, group)
        s.c = group_rows(m, p, m.n_group + group)
        s.x = p.wide + head * T * D + row
        s.decay = gates_of(m, p, head)
        s.dt = s.decay + T
        s.skip = m.skip[head]
        p.isa.ssm_scan(&s)
    team_barrier(p.team)


cdef void gated_norms(const Mamba *m, Pass *p) noexcept nogil:
    """p.attn = norm(results * silu(z)), group after group, token after token; quantized for the output projection."""
    cdef int64_t T = p.n_tokens, D = m.head_dim, n = inner(m), n_normed = n // m.n_group, t, i
    cdef int f = m.out.type.x_format
    cdef size_t row_bytes = moe_x_row_bytes(p.isa, f, <size_t>n)
    cdef float *y
    while True:
        t = team_claim(p.team, T)
        if t < 0:
            break
        y = p.attn + t * n
        for i in range(m.n_head):
            p.isa.silu_mul(<size_t>D, p.v + t * n + i * D, p.wide + (i * T + t) * D, y + i * D)
        for i in range(m.n_group):
            p.isa.rms_norm(<size_t>n_normed, y + i * n_normed, m.norm + i * n_normed, m.eps, y + i * n_normed)
        p.isa.x[f].quantize_row(<size_t>n, y, p.aq + <size_t>t * row_bytes)
    team_barrier(p.team)


cdef void mamba_run(void *state, Pass *p, int ith, int nth) noexcept nogil:
    cdef const Mamba *m = <const Mamba *>state
    cdef int64_t T = p.n_tokens, E = m.n_embd
    cdef const uint8_t *x[3]
    cdef size_t x_stride[3]
    cdef float *out[3]
    cdef int i, f
    norm_rows(p, m.block_norm, m.eps, m.formats, E)
    for i in range(3):
        f = m.projections[i].type.x_format
        x[i] = p.xq[f]
        x_stride[i] = moe_x_row_bytes(p.isa, f, <size_t>E)
    out[0] = p.v
    out[1] = p.q
    out[2] = p.k
    linear(p, m.projections, 3, x, x_stride, out, T)

    convolve(m, p)
    scan(m, p)
    gated_norms(m, p)

    x[0] = p.aq
    x_stride[0] = moe_x_row_bytes(p.isa, m.out.type.x_format, <size_t>inner(m))
    out[0] = p.out
    linear(p, &m.out, 1, x, x_stride, out, T)
    add_residual(p, E, &m.residual)


cdef class Mamba2Block(Block):
    """x += residual_scale * out(norm(scan(conv(x, B, C), dt) * silu(z))), all of them projections of norm(x).

    I = n_head head_dim, G = n_group, C = I + 2 G dim channels.

    Parameters
    ----------
    block_norm : Vector (E,)
    projections : list of Weight     z (I, E); x, B and C in one (C, E); dt (H, E)
    conv : Vector (taps, C)
    conv_bias : Vector (C,) or None
    dt_bias, a, skip : Vector (H,)   of dt; factor of the time step; share of x that goes around the state
    norm : Vector (I,)               I / G values a group
    out : Weight (E, I)
    n_group : int                    H / G heads that are neighbours share B and C
    state_offset : int               floats of all earlier layers in Pass.recurrent
    """

    def __init__(self, *, Vector block_norm, list projections, Vector conv, conv_bias, Vector dt_bias, Vector a, Vector skip,
                 Vector norm, Weight out, int n_head, int head_dim, int n_group, int dim, int n_taps, float eps,
                 float residual_scale, int64_t state_offset):
        cdef Mamba *m = <Mamba *>calloc(1, sizeof(Mamba))
        if m == NULL:
            raise MemoryError
        self.state = m
        self.run = mamba_run
        self.keep = [block_norm, projections, conv, conv_bias, dt_bias, a, skip, norm, out]
        m.n_embd, m.n_head, m.head_dim, m.n_group, m.dim = out.linear.n_rows, n_head, head_dim, n_group, dim
        m.eps = eps
        m.conv.n_channels, m.conv.n_taps, m.conv.w = n_head * head_dim + 2 * n_group * dim, n_taps, conv.data
        m.conv.bias = (<Vector?>conv_bias).data if conv_bias is not None else NULL
        m.conv.state_offset, m.state_offset = state_offset, state_offset + (n_taps - 1) * m.conv.n_channels
        residual_init(&m.residual, residual_scale, None, eps, 1)
        for i in range(3):
            m.projections[i] = (<Weight?>projections[i]).linear
            m.formats |= 1u << m.projections[i].type.x_format
        m.out = out.linear
        m.block_norm, m.norm = block_norm.data, norm.data
        m.dt_bias, m.a, m.skip = dt_bias.data, a.data, skip.data

    def __dealloc__(self):
        free(self.state)
