"""A gated delta net in the place of attention: norm, projections, causal convolution, delta rule, gated norm, output.

What a layer knows of the tokens before a chunk is a state of fixed size (Pass.recurrent): the last projections, which
the convolution needs, and a matrix a head. It is changed in place and belongs to exactly as many tokens as it has seen.
A unit of work is a head, or some rows of one; its tokens follow one another, so no cut of a prompt shows in the result.

Between convolution and output norm, queries, keys and values lie head after head, each (T, dim), in Pass.wide: rows of
one head would otherwise be so far apart that they throw each other out of a cache.
"""
from libc.math cimport expf, sqrtf
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport calloc, free

from moeengine.graph.block cimport Block, Linear, Pass, add_residual, cancelled, linear, norm_rows
from moeengine.graph.causal_conv cimport CausalConv, convolve_channels
from moeengine.graph.recurrent_heads cimport UNIT_ROWS, sigmoid, softplus, unit_rows
from moeengine.graph.weights cimport Vector, Weight
from moeengine.kernels.table cimport moe_delta, moe_x_row_bytes
from moeengine.kernels.threads cimport team_barrier, team_claim

cdef struct DeltaNet:
    int64_t n_embd, n_head_k, n_head_v, dim
    bint by_group               # value heads of one key head are neighbours, beta and alpha come group by group
    int n_in
    float eps
    const float *attn_norm      # (E,)
    Linear projections[4]       # q, k and v; z; then beta and alpha, or both in one
    CausalConv conv             # of queries, keys and values
    const float *dt_bias        # (Hv,)
    const float *a              # (Hv,), negative
    const float *norm           # (dim,)
    Linear out
    int64_t state_offset        # of the heads' matrices in Pass.recurrent, floats
    unsigned formats


cdef void convolve_head(const DeltaNet *d, Pass *p, int64_t head) noexcept nogil:
    """Convolution and SiLU of one of the query, key and value heads, all tokens, into p.wide; norms queries and keys to
    length 1; keeps the last projections for the next chunk."""
    cdef float *y = p.wide + head * p.n_tokens * d.dim
    convolve_channels(&d.conv, p, p.q, head * d.dim, d.dim, y, d.dim)
    if head < 2 * d.n_head_k:
        unit_rows(p.isa, p.n_tokens, d.dim, d.eps, y)


cdef float *gates_of(const DeltaNet *d, Pass *p, int64_t head) noexcept nogil:
    """(2, T): what a value head keeps of its state, and what share of the miss it learns, for every token."""
    return p.wide + (d.conv.n_channels + 2 * head) * p.n_tokens


cdef void gate_head(const DeltaNet *d, Pass *p, int64_t head) noexcept nogil:
    cdef int64_t T = p.n_tokens, group = d.n_head_v // d.n_head_k, stride = d.n_head_v, t
    cdef const float *beta = p.k + head
    cdef const float *alpha = p.k + T * d.n_head_v + head
    cdef float *gates = gates_of(d, p, head)
    if d.by_group:
        stride = 2 * d.n_head_v
        beta = p.k + head // group * 2 * group + head % group
        alpha = beta + group
    for t in range(T):
        gates[t] = expf(softplus(alpha[t * stride] + d.dt_bias[head]) * d.a[head])
        gates[T + t] = sigmoid(beta[t * stride])


cdef void convolve(const DeltaNet *d, Pass *p) noexcept nogil:
    cdef int64_t n_qk = 2 * d.n_head_k, unit
    while True:
        unit = team_claim(p.team, n_qk + d.n_head_v)
        if unit < 0:
            break
        if cancelled(p):
            continue
        convolve_head(d, p, unit)
        if unit >= n_qk:
            gate_head(d, p, unit - n_qk)
    team_barrier(p.team)


cdef void run_rule(const DeltaNet *d, Pass *p) noexcept nogil:
    """Values in p.wide become the heads' results."""
    cdef int64_t T = p.n_tokens, D = d.dim, n_parts = (D + UNIT_ROWS - 1) // UNIT_ROWS, unit, head, head_k, row
    cdef float *state = p.recurrent + d.state_offset
    cdef moe_delta m
    m.dim = <size_t>D
    m.n_tokens = <size_t>T
    m.v_stride = <size_t>D
    m.by_element = False
    m.scale = <float>1 / sqrtf(<float>D)
    while True:
        unit = team_claim(p.team, d.n_head_v * n_parts)
        if unit < 0:
            break
        if cancelled(p):
            continue
        head, row = unit // n_parts, unit % n_parts * UNIT_ROWS
        head_k = head // (d.n_head_v // d.n_head_k) if d.by_group else head % d.n_head_k
        m.n_rows = <size_t>min(<int64_t>UNIT_ROWS, D - row)
        m.state = state + (head * D + row) * D
        m.q = p.wide + head_k * T * D
        m.k = p.wide + (d.n_head_k + head_k) * T * D
        m.v = p.wide + (2 * d.n_head_k + head) * T * D + row
        m.decay = gates_of(d, p, head)
        m.beta = m.decay + T
        p.isa.delta_rule(&m)
    team_barrier(p.team)


cdef void gated_norms(const DeltaNet *d, Pass *p) noexcept nogil:
    """p.attn = norm(results) * silu(z), token after token; quantized for the output projection."""
    cdef int64_t T = p.n_tokens, D = d.dim, n = d.n_head_v * D, t, head
    cdef int f = d.out.type.x_format
    cdef size_t row_bytes = moe_x_row_bytes(p.isa, f, <size_t>n)
    cdef float *y
    while True:
        t = team_claim(p.team, T)
        if t < 0:
            break
        y = p.attn + t * n
        for head in range(d.n_head_v):
            p.isa.rms_norm(<size_t>D, p.wide + ((2 * d.n_head_k + head) * T + t) * D, d.norm, d.eps, y + head * D)
            p.isa.silu_mul(<size_t>D, p.v + t * n + head * D, y + head * D, y + head * D)
        p.isa.x[f].quantize_row(<size_t>n, y, p.aq + <size_t>t * row_bytes)
    team_barrier(p.team)


cdef void delta_net_run(void *state, Pass *p, int ith, int nth) noexcept nogil:
    cdef const DeltaNet *d = <const DeltaNet *>state
    cdef int64_t T = p.n_tokens, E = d.n_embd
    cdef const uint8_t *x[4]
    cdef size_t x_stride[4]
    cdef float *out[4]
    cdef int i, f
    norm_rows(p, d.attn_norm, d.eps, d.formats, E)
    for i in range(d.n_in):
        f = d.projections[i].type.x_format
        x[i] = p.xq[f]
        x_stride[i] = moe_x_row_bytes(p.isa, f, <size_t>E)
    out[0] = p.q
    out[1] = p.v
    out[2] = p.k
    out[3] = p.k + T * d.n_head_v
    linear(p, d.projections, d.n_in, x, x_stride, out, T)

    convolve(d, p)
    run_rule(d, p)
    gated_norms(d, p)

    f = d.out.type.x_format
    x[0] = p.aq
    x_stride[0] = moe_x_row_bytes(p.isa, f, <size_t>(d.n_head_v * d.dim))
    out[0] = p.out
    linear(p, &d.out, 1, x, x_stride, out, T)
    add_residual(p, E, NULL)


cdef class DeltaNetBlock(Block):
    """x += out(norm(delta_rule(q, k, v, gates)) * silu(z)), all of them projections of norm(x).

    Parameters
    ----------
    attn_norm : Vector (E,)
    qkv, z : Weight            ((2 Hk + Hv) dim, E), (Hv dim, E)
    gates : list of Weight     beta and alpha, each (Hv, E); with by_group one (2 Hv, E), a group's beta before its alpha
    conv : Vector              (taps, (2 Hk + Hv) dim)
    dt_bias, a : Vector (Hv,)  of alpha; factor of the softplus of both
    norm : Vector (dim,)
    out : Weight (E, Hv dim)
    by_group : bool            a key head serves Hv / Hk value heads that are neighbours; else those with its number
                               modulo Hk
    state_offset : int         floats of all earlier layers in Pass.recurrent
    """

    def __init__(self, *, Vector attn_norm, Weight qkv, Weight z, list gates, Vector conv, Vector dt_bias, Vector a,
                 Vector norm, Weight out, int n_head_k, int n_head_v, int dim, int n_taps, bint by_group, float eps,
                 int64_t state_offset):
        cdef DeltaNet *d = <DeltaNet *>calloc(1, sizeof(DeltaNet))
        if d == NULL:
            raise MemoryError
        self.state = d
        self.run = delta_net_run
        self.keep = [attn_norm, qkv, z, gates, conv, dt_bias, a, norm, out]
        d.n_embd, d.n_head_k, d.n_head_v, d.dim = qkv.linear.n_in, n_head_k, n_head_v, dim
        d.by_group, d.eps = by_group, eps
        d.conv.n_channels, d.conv.n_taps, d.conv.w, d.conv.state_offset = qkv.linear.n_rows, n_taps, conv.data, state_offset
        d.state_offset = state_offset + (n_taps - 1) * qkv.linear.n_rows
        for i, weight in enumerate([qkv, z, *gates]):
            d.projections[i] = (<Weight?>weight).linear
            d.formats |= 1u << d.projections[i].type.x_format
        d.n_in = 2 + len(gates)
        d.out = out.linear
        d.attn_norm, d.dt_bias, d.a, d.norm = attn_norm.data, dt_bias.data, a.data, norm.data

    def __dealloc__(self):
        free(self.state)
