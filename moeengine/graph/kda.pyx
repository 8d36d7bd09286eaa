"""Kimi delta attention in the place of attention: a gated delta net (delta_net.pyx) whose heads forget each element of a key
at a rate of its own. Queries, keys and values are convolved apart; rates and output gates come through narrow layers.

Between convolution and output norm heads lie one after the other, each (T, dim), in Pass.wide: queries, keys, values, then
what is kept of each element of a key, then a row of shares that are learnt for each head.
"""
from libc.math cimport expf, sqrtf
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport calloc, free

from moeengine.graph.block cimport Block, Linear, Pass, add_residual, cancelled, linear, norm_rows, quantize_rows
from moeengine.graph.causal_conv cimport CausalConv, convolve_channels
from moeengine.graph.recurrent_heads cimport UNIT_ROWS, sigmoid, softplus, unit_rows
from moeengine.graph.weights cimport Vector, Weight
from moeengine.kernels.table cimport moe_delta, moe_x_row_bytes
from moeengine.kernels.threads cimport team_barrier, team_claim

cdef enum:
    Q = 0
    K = 1
    V = 2
    N_IN = 6


cdef struct Kda:
    int64_t n_embd, n_head, dim
    float eps
    const float *attn_norm      # (E,)
    Linear projections[N_IN]    # q, k, v; then down to dim values for the rates and for the gates; beta
    bint narrow                 # else the fourth and fifth are the rates and the gates themselves
    Linear rates, gates         # (H dim, dim) of what came down
    float least_log             # 0, or the logarithm of what is kept is this times a sigmoid
    CausalConv conv[3]
    const float *dt_bias        # (H dim,) of the rates
    const float *a              # (H,), negative
    const float *norm           # (dim,)
    Linear out
    int64_t state_offset        # of the heads' matrices in Pass.recurrent, floats
    unsigned formats


cdef inline float *part(const Kda *d, Pass *p, int which, int64_t head) noexcept nogil:
    """(T, dim): a head's queries, keys, values, or (which 3) what is kept of its keys' elements."""
    return p.wide + (which * d.n_head + head) * d.dim * p.n_tokens


cdef inline float *betas(const Kda *d, Pass *p, int64_t head) noexcept nogil:
    return p.wide + (4 * d.n_head * d.dim + head) * p.n_tokens


cdef void convolve_head(const Kda *d, Pass *p, int which, int64_t head) noexcept nogil:
    """Convolution and SiLU; queries and keys normed to length 1."""
    cdef float *y = part(d, p, which, head)
    convolve_channels(&d.conv[which], p, p.q + which * p.n_tokens * d.n_head * d.dim, head * d.dim, d.dim, y, d.dim)
    if which != V:
        unit_rows(p.isa, p.n_tokens, d.dim, d.eps, y)


cdef void gate_head(const Kda *d, Pass *p, int64_t head) noexcept nogil:
    cdef int64_t T = p.n_tokens, D = d.dim, n = d.n_head * D, t, i
    cdef float *decay = part(d, p, 3, head)
    cdef float *beta = betas(d, p, head)
    cdef const float *bias = d.dt_bias + head * D
    cdef const float *rate
    for t in range(T):
        rate = p.v + t * n + head * D
        if d.least_log != 0:
            for i in range(D):
                decay[t * D + i] = expf(sigmoid((rate[i] + bias[i]) * d.a[head]) * d.least_log)
        else:
            for i in range(D):
                decay[t * D + i] = expf(softplus(rate[i] + bias[i]) * d.a[head])
        beta[t] = sigmoid(p.k[(2 * T * D if d.narrow else 0) + t * d.n_head + head])


cdef void prepare_heads(const Kda *d, Pass *p) noexcept nogil:
    cdef int64_t unit
    while True:
        unit = team_claim(p.team, 4 * d.n_head)
        if unit < 0:
            break
        if cancelled(p):
            continue
        if unit < 3 * d.n_head:
            convolve_head(d, p, <int>(unit // d.n_head), unit % d.n_head)
        else:
            gate_head(d, p, unit - 3 * d.n_head)
    team_barrier(p.team)


cdef void run_rule(const Kda *d, Pass *p) noexcept nogil:
    """Values in p.wide become the heads' results."""
    cdef int64_t D = d.dim, n_parts = (D + UNIT_ROWS - 1) // UNIT_ROWS, unit, head, row
    cdef moe_delta m
    m.dim = <size_t>D
    m.n_tokens = <size_t>p.n_tokens
    m.v_stride = <size_t>D
    m.scale = <float>1 / sqrtf(<float>D)
    m.by_element = True
    while True:
        unit = team_claim(p.team, d.n_head * n_parts)
        if unit < 0:
            break
        if cancelled(p):
            continue
        head, row = unit // n_parts, unit % n_parts * UNIT_ROWS
        m.n_rows = <size_t>min(<int64_t>UNIT_ROWS, D - row)
        m.state = p.recurrent + d.state_offset + (head * D + row) * D
        m.q, m.k, m.v = part(d, p, Q, head), part(d, p, K, head), part(d, p, V, head) + row
        m.decay, m.beta = part(d, p, 3, head), betas(d, p, head)
        p.isa.delta_rule(&m)
    team_barrier(p.team)


cdef void gated_norms(const Kda *d, Pass *p) noexcept nogil:
    """p.attn = norm(results) * sigmoid(gates), token after token; quantized for the output projection."""
    cdef int64_t T = p.n_tokens, D = d.dim, n = d.n_head * D, t, head
    cdef int f = d.out.type.x_format
    cdef size_t row_bytes = moe_x_row_bytes(p.isa, f, <size_t>n)
    cdef float *y
    while True:
        t = team_claim(p.team, T)
        if t < 0:
            break
        y = p.attn + t * n
        for head in range(d.n_head):
            p.isa.rms_norm(<size_t>D, part(d, p, V, head) + t * D, d.norm, d.eps, y + head * D)
            p.isa.sigmoid_mul(<size_t>D, p.v + (T + t) * n + head * D, y + head * D, y + head * D)
        p.isa.x[f].quantize_row(<size_t>n, y, p.aq + <size_t>t * row_bytes)
    team_barrier(p.team)


cdef void from_narrow(const Kda *d, Pass *p, const Linear *w, const float *x, float *out) noexcept nogil:
    """out (T, H dim) = w x of x (T, dim). Ends with a barrier."""
    cdef int f = w.type.x_format
    cdef size_t stride = moe_x_row_bytes(p.isa, f, <size_t>d.dim)
    cdef const uint8_t *rows = p.aq
    quantize_rows(p, x, p.n_tokens, d.dim, <size_t>d.dim, f, p.aq)
    linear(p, w, 1, &rows, &stride, &out, p.n_tokens)


cdef void kda_run(void *state, Pass *p, int ith, int nth) noexcept nogil:
    cdef const Kda *d = <const Kda *>state
    cdef int64_t T = p.n_tokens, E = d.n_embd, n = d.n_head * d.dim
    cdef const uint8_t *x[N_IN]
    cdef size_t x_stride[N_IN]
    cdef float *out[N_IN]
    cdef int i, f
    norm_rows(p, d.attn_norm, d.eps, d.formats, E)
    for i in range(N_IN):
        f = d.projections[i].type.x_format
        x[i] = p.xq[f]
        x_stride[i] = moe_x_row_bytes(p.isa, f, <size_t>E)
        out[i] = p.q + i * T * n if i < 3 else p.k + (i - 3) * T * d.dim
    if not d.narrow:
        out[3], out[4], out[5] = p.v, p.v + T * n, p.k
    linear(p, d.projections, N_IN, x, x_stride, out, T)
    if d.narrow:
        from_narrow(d, p, &d.rates, p.k, p.v)
        from_narrow(d, p, &d.gates, p.k + T * d.dim, p.v + T * n)

    prepare_heads(d, p)
    run_rule(d, p)
    gated_norms(d, p)

    x[0] = p.aq
    x_stride[0] = moe_x_row_bytes(p.isa, d.out.type.x_format, <size_t>n)
    out[0] = p.out
    linear(p, &d.out, 1, x, x_stride, out, T)
    add_residual(p, E, NULL)


cdef class KdaBlock(Block):
    """x += out(norm(delta_rule(q, k, v, rates, beta)) * sigmoid(gates)), all of them projections of norm(x).

    Parameters
    ----------
    attn_norm : Vector (E,)
    projections : list of Weight     q, k, v, each (H dim, E); down to rates, to gates, each (dim, E); beta (H, E)
    rates, gates : Weight (H dim, dim), or None: the fourth and fifth projection are (H dim, E) and all there is
    conv : list of Vector            of q, k and v, each (taps, H dim)
    dt_bias : Vector (H dim,)        of the rates
    a : Vector (H,)                  factor of the softplus of both; with least_log of their sum
    least_log : float                0, or less: the logarithm of what is kept is this times the sigmoid of their product
    norm : Vector (dim,)
    out : Weight (E, H dim)
    state_offset : int               floats of all earlier layers in Pass.recurrent
    """

    def __init__(self, *, Vector attn_norm, list projections, rates, gates, list conv, Vector dt_bias, Vector a,
                 Vector norm, Weight out, int n_head, int dim, int n_taps, float eps, int64_t state_offset,
                 float least_log=0):
        cdef Kda *d = <Kda *>calloc(1, sizeof(Kda))
        if d == NULL:
            raise MemoryError
        self.state = d
        self.run = kda_run
        self.keep = [attn_norm, projections, rates, gates, conv, dt_bias, a, norm, out]
        d.n_embd, d.n_head, d.dim, d.eps = out.linear.n_rows, n_head, dim, eps
        for i in range(N_IN):
            d.projections[i] = (<Weight?>projections[i]).linear
            d.formats |= 1u << d.projections[i].type.x_format
        for i in range(3):
            d.conv[i].n_channels, d.conv[i].n_taps, d.conv[i].w = n_head * dim, n_taps, (<Vector?>conv[i]).data
            d.conv[i].state_offset = state_offset + i * (n_taps - 1) * n_head * dim
        d.state_offset = state_offset + 3 * (n_taps - 1) * n_head * dim
        d.out, d.least_log, d.narrow = out.linear, least_log, rates is not None
        if d.narrow:
            d.rates, d.gates = (<Weight?>rates).linear, (<Weight?>gates).linear
        d.attn_norm, d.dt_bias, d.a, d.norm = attn_norm.data, dt_bias.data, a.data, norm.data

    def __dealloc__(self):
        free(self.state)
