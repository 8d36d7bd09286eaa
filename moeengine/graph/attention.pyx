"""Self-attention over the KV cache: norm, q/k/v, head norms, rope, attention, output, residual.

The cache holds F16 keys and values as [layer][k|v][kv head][position][head_dim].
"""
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t
from libc.stdlib cimport calloc, free

from moeengine.graph.block cimport (
    Block, Linear, Pass, cancelled, linear, linear_chunk, norm_rows, quantize_rows, ROW_CHUNK,
)
from moeengine.graph.weights cimport Vector, Weight
from moeengine.kernels.table cimport MOE_X_COUNT, moe_attn, moe_x_row_bytes
from moeengine.kernels.threads cimport team_barrier, team_claim

from moeengine.errors import UnsupportedError

cdef struct Attention:
    int64_t n_embd, n_head, n_head_kv, head_dim_k, head_dim_v, n_rot
    int neox
    float eps, scale
    const float *attn_norm      # (E,)
    Linear qkv[3]
    Linear wo
    const float *q_norm         # per head (Dk,), whole row (H*Dk,) or NULL
    const float *k_norm
    int norm_whole_row
    int64_t kv_offset           # of this layer in the cache, in elements per position
    unsigned formats            # activation formats that q, k and v need


cdef uint16_t *cache_rows(const Attention *a, const Pass *p, int is_v, int64_t head) noexcept nogil:
    """First row of one head's keys or values in the cache of this layer."""
    cdef int64_t at = a.kv_offset + (a.n_head_kv * a.head_dim_k if is_v else 0)
    at += head * (a.head_dim_v if is_v else a.head_dim_k)
    return p.kv + at * p.n_ctx


cdef void finish_token(const Attention *a, Pass *p, int64_t t) noexcept nogil:
    """Head norms and rope on the queries and keys of one token; keys and values into the cache."""
    cdef int64_t h, pos = p.n_past + t
    cdef float *q = p.q + t * a.n_head * a.head_dim_k
    cdef float *k = p.k + t * a.n_head_kv * a.head_dim_k
    cdef float *v = p.v + t * a.n_head_kv * a.head_dim_v
    cdef const float *cs = p.rope + t * a.n_rot
    if a.norm_whole_row:
        if a.q_norm != NULL:
            p.isa.rms_norm(<size_t>(a.n_head * a.head_dim_k), q, a.q_norm, a.eps, q)
        if a.k_norm != NULL:
            p.isa.rms_norm(<size_t>(a.n_head_kv * a.head_dim_k), k, a.k_norm, a.eps, k)
    for h in range(a.n_head):
        if a.q_norm != NULL and not a.norm_whole_row:
            p.isa.rms_norm(<size_t>a.head_dim_k, q + h * a.head_dim_k, a.q_norm, a.eps, q + h * a.head_dim_k)
        p.isa.rope(<size_t>a.n_rot, cs, a.neox, q + h * a.head_dim_k)
    for h in range(a.n_head_kv):
        if a.k_norm != NULL and not a.norm_whole_row:
            p.isa.rms_norm(<size_t>a.head_dim_k, k + h * a.head_dim_k, a.k_norm, a.eps, k + h * a.head_dim_k)
        p.isa.rope(<size_t>a.n_rot, cs, a.neox, k + h * a.head_dim_k)
        p.isa.f32_to_f16(<size_t>a.head_dim_k, k + h * a.head_dim_k,
                         cache_rows(a, p, 0, h) + pos * a.head_dim_k)
        p.isa.f32_to_f16(<size_t>a.head_dim_v, v + h * a.head_dim_v,
                         cache_rows(a, p, 1, h) + pos * a.head_dim_v)


cdef void attend(const Attention *a, Pass *p, int64_t head_kv, int64_t t0, int64_t t1,
                 uint8_t *scratch) noexcept nogil:
    """Attention of the query heads that share head_kv, tokens t0 <= t < t1, into p.attn."""
    cdef const float *q[Q_ROWS]
    cdef float *out[Q_ROWS]
    cdef int32_t n_kv[Q_ROWS]
    cdef int64_t t, h, n = 0, group = a.n_head // a.n_head_kv
    cdef moe_attn m
    for t in range(t0, t1):
        for h in range(group):
            q[n] = p.q + (t * a.n_head + head_kv * group + h) * a.head_dim_k
            out[n] = p.attn + (t * a.n_head + head_kv * group + h) * a.head_dim_v
            n_kv[n] = <int32_t>(p.n_past + t + 1)
            n += 1
    m.head_dim_k = <size_t>a.head_dim_k
    m.head_dim_v = <size_t>a.head_dim_v
    m.n_q = <size_t>n
    m.q = q
    m.out = out
    m.n_kv = n_kv
    m.k = cache_rows(a, p, 0, head_kv)
    m.k_stride = <size_t>a.head_dim_k
    m.v = cache_rows(a, p, 1, head_kv)
    m.v_stride = <size_t>a.head_dim_v
    m.scale = a.scale
    m.sink = NULL
    m.scratch = scratch
    p.isa.attention(&m)


cdef void attention_run(void *state, Pass *p, int ith, int nth) noexcept nogil:
    cdef const Attention *a = <const Attention *>state
    cdef int64_t T = p.n_tokens, unit, t, tokens_unit, n_blocks, b
    cdef const uint8_t *x[3]
    cdef size_t x_stride[3]
    cdef float *out[3]
    cdef const uint8_t *xo[1]
    cdef float *oo[1]
    cdef size_t so[1]
    cdef int i, f
    norm_rows(p, a.attn_norm, a.eps, a.formats, a.n_embd)
    for i in range(3):
        f = a.qkv[i].type.x_format
        x[i] = p.xq[f]
        x_stride[i] = moe_x_row_bytes(p.isa, f, <size_t>a.n_embd)
    out[0] = p.q
    out[1] = p.k
    out[2] = p.v
    linear(p, a.qkv, 3, x, x_stride, out, T)

    while True:
        t = team_claim(p.team, T)
        if t < 0:
            break
        finish_token(a, p, t)
    team_barrier(p.team)

    # Later blocks see more keys: the most expensive first, so that no thread is left with one.
    tokens_unit = max(1, Q_ROWS // (a.n_head // a.n_head_kv))
    n_blocks = (T + tokens_unit - 1) // tokens_unit
    while True:
        unit = team_claim(p.team, n_blocks * a.n_head_kv)
        if unit < 0:
            break
        if cancelled(p):
            continue
        b = n_blocks - 1 - unit // a.n_head_kv
        attend(a, p, unit % a.n_head_kv, b * tokens_unit, min(T, (b + 1) * tokens_unit),
               p.thread_scratch + <size_t>ith * p.thread_scratch_bytes)
    team_barrier(p.team)

    f = a.wo.type.x_format
    quantize_rows(p, p.attn, T, a.n_head * a.head_dim_v, <size_t>(a.n_head * a.head_dim_v), f, p.aq)
    xo[0] = p.aq
    so[0] = moe_x_row_bytes(p.isa, f, <size_t>(a.n_head * a.head_dim_v))
    oo[0] = p.out
    linear(p, &a.wo, 1, xo, so, oo, T)
    while True:
        t = team_claim(p.team, T)
        if t < 0:
            break
        p.isa.add(<size_t>a.n_embd, p.x + t * a.n_embd, p.out + t * a.n_embd, p.x + t * a.n_embd)
    team_barrier(p.team)


cdef class AttentionBlock(Block):
    """x += wo(attention(norm(x))).

    Parameters
    ----------
    attn_norm : Vector (E,)
    q, k, v, o : Weight            (H*Dk, E), (K*Dk, E), (K*Dv, E), (E, H*Dv)
    q_norm, k_norm : Vector or None    per head (Dk,) or, with norm_whole_row, (H*Dk,) and (K*Dk,)
    n_rot : int                    rotated values of a head
    neox : bool                    rope pairs i with i + n_rot/2; else 2i with 2i+1
    scale : float                  of the scores, usually 1/sqrt(Dk)
    kv_offset : int                elements a position of all earlier layers in the cache
    """

    def __init__(self, *, Vector attn_norm, Weight q, Weight k, Weight v, Weight o, q_norm, k_norm,
                 bint norm_whole_row, int n_head, int n_head_kv, int head_dim_k, int head_dim_v,
                 int n_rot, bint neox, float eps, float scale, int64_t kv_offset):
        if n_head // n_head_kv > Q_ROWS:
            raise UnsupportedError(f"{n_head // n_head_kv} query heads a KV head: at most {Q_ROWS} are supported")
        cdef Attention *a = <Attention *>calloc(1, sizeof(Attention))
        if a == NULL:
            raise MemoryError
        self.state = a
        self.run = attention_run
        self.keep = [attn_norm, q, k, v, o, q_norm, k_norm]
        a.n_embd, a.n_head, a.n_head_kv = q.linear.n_in, n_head, n_head_kv
        a.head_dim_k, a.head_dim_v, a.n_rot, a.neox = head_dim_k, head_dim_v, n_rot, neox
        a.eps, a.scale, a.kv_offset = eps, scale, kv_offset
        a.attn_norm = attn_norm.data
        a.qkv[0], a.qkv[1], a.qkv[2], a.wo = q.linear, k.linear, v.linear, o.linear
        a.q_norm = (<Vector?>q_norm).data if q_norm is not None else NULL
        a.k_norm = (<Vector?>k_norm).data if k_norm is not None else NULL
        a.norm_whole_row = norm_whole_row
        a.formats = 0
        for i in range(3):
            a.formats |= 1u << a.qkv[i].type.x_format

    def __dealloc__(self):
        free(self.state)
