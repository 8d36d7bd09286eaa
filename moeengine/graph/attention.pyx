"""Self-attention over the KV cache (kv_cache.pyx): norm, q/k/v, head norms, rope, attention, output, residual."""
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from moeengine.graph.block cimport (
    KV_WHOLE, KV_WINDOW, Block, Linear, Pass, Residual, add_residual, cancelled, linear, quantize_rows, read_stream,
    residual_init, stream_norm_init,
)
from moeengine.graph.temperature cimport temperature
from moeengine.graph.recurrent_heads cimport softplus
from moeengine.graph.weights cimport Vector, Weight, values_of
from moeengine.kernels.table cimport (
    MOE_F16_POSITIONS, MOE_KV_SEGMENT, MOE_KV_TILE, MOE_X_COUNT, moe_attn, moe_attn_partial_floats, moe_x_row_bytes,
)
from moeengine.kernels.threads cimport team_barrier, team_claim

from moeengine.errors import UnsupportedError

cdef extern from "math.h" nogil:
    float expf(float)

cdef enum AttendPart:
    ATTEND_ALL
    ATTEND_F16
    ATTEND_SEGMENT
    ATTEND_MERGE


cdef void cache_of(const Attention *a, const Pass *p, int64_t head, uint16_t **k, uint16_t **v) noexcept nogil:
    """First element of one KV head's keys and values in the cache of this layer."""
    k[0] = p.kv[a.kv].at + (a.kv_offset + head * a.head_dim_k) * MOE_KV_TILE
    v[0] = p.kv[a.kv].at + (a.kv_offset + a.n_head_kv * a.head_dim_k + head * a.head_dim_v) * MOE_KV_TILE


cdef void norm_whole_rows(const Attention *a, Pass *p) noexcept nogil:
    """Norms over all heads of a row at once, where the architecture has them. Ends with a barrier."""
    cdef int64_t t, n_q = a.n_head * a.head_dim_k, n_k = a.n_head_kv * a.head_dim_k
    while True:
        t = team_claim(p.team, p.n_tokens)
        if t < 0:
            break
        p.isa.rms_norm(<size_t>n_q, p.q + t * n_q, a.q_norm, a.eps, p.q + t * n_q)
        p.isa.rms_norm(<size_t>n_k, p.k + t * n_k, a.k_norm, a.eps, p.k + t * n_k)
    team_barrier(p.team)


cdef inline void clamp_values(float bound, int64_t n, float *x) noexcept nogil:
    cdef int64_t i
    for i in range(n):
        x[i] = max(-bound, min(bound, x[i]))


cdef void finish_head(const Attention *a, Pass *p, int64_t t, const float *norm, float *head) noexcept nogil:
    """Bounds, norm (where there is one a head) and rope of one head of token t, in the architecture's order."""
    cdef bint with_norm = norm != NULL and not a.norm_whole_row
    if a.clamp > 0:
        clamp_values(a.clamp, a.head_dim_k, head)
    if with_norm and not a.norm_after_rope:
        p.isa.rms_norm(<size_t>a.head_dim_k, head, norm, a.eps, head)
    p.isa.rope(<size_t>a.n_rot, p.rope + p.n_tokens * a.rope_at + t * a.n_rot, a.neox, head)
    if with_norm and a.norm_after_rope:
        p.isa.rms_norm(<size_t>a.head_dim_k, head, norm, a.eps, head)


cdef void finish_heads(const Attention *a, Pass *p, int64_t head_kv, int64_t t0, int64_t t1) noexcept nogil:
    """Head norms and rope for one KV head and its query heads, tokens t0 <= t < t1; fills the cache, of which they have one
    tile."""
    cdef int64_t t, h, group = a.n_head // a.n_head_kv, pos = (p.n_past + t0) % MOE_KV_TILE
    cdef int64_t tile = (p.n_past + t0) // MOE_KV_TILE % p.kv[a.kv].n * p.kv[a.kv].stride
    cdef float q_scale = a.q_scale
    cdef float *q
    cdef float *k
    cdef float *v
    cdef uint16_t *k_cache
    cdef uint16_t *v_cache
    cache_of(a, p, head_kv, &k_cache, &v_cache)
    for t in range(t0, t1):
        q = p.q + (t * a.n_head + head_kv * group) * a.head_dim_k
        if a.temperature.scale != 0:
            q_scale = a.q_scale * temperature(&a.temperature, p.n_past + t)
        for h in range(group):
            finish_head(a, p, t, a.q_norm, q)
            if q_scale != 1:
                p.isa.scale(<size_t>a.head_dim_k, q_scale, q, q)
            q += a.head_dim_k
        k = p.k + (t * a.n_head_kv + head_kv) * a.head_dim_k
        v = p.v + (t * a.n_head_kv + head_kv) * a.head_dim_v
        if a.values_are_keys:
            memcpy(v, k, <size_t>a.head_dim_v * sizeof(float))
        if a.clamp > 0:
            clamp_values(a.clamp, a.head_dim_v, v)
        if a.norm_values:
            p.isa.rms_norm(<size_t>a.head_dim_v, v, NULL, a.eps, v)
        finish_head(a, p, t, a.k_norm, k)
        p.isa.f32_to_f16(<size_t>a.head_dim_v, v, v_cache + tile + (pos + t - t0) * a.head_dim_v)
    p.isa.k_store(<size_t>(t1 - t0), <size_t>a.head_dim_k, <size_t>pos,
                  p.k + (t0 * a.n_head_kv + head_kv) * a.head_dim_k, <size_t>(a.n_head_kv * a.head_dim_k),
                  k_cache + tile, 0)


cdef void finish_qkv(const Attention *a, Pass *p) noexcept nogil:
    """Units are whole cache tiles of one head, so that no two threads write into one line."""
    cdef int64_t first = p.n_past // MOE_KV_TILE, last = (p.n_past + p.n_tokens - 1) // MOE_KV_TILE
    cdef int64_t unit, tile
    while True:
        unit = team_claim(p.team, (last - first + 1) * a.n_head_kv)
        if unit < 0:
            break
        tile = first + unit // a.n_head_kv
        finish_heads(a, p, unit % a.n_head_kv, max(0, tile * MOE_KV_TILE - p.n_past),
                     min(p.n_tokens, (tile + 1) * MOE_KV_TILE - p.n_past))
    team_barrier(p.team)


cdef inline int64_t first_key(const Attention *a, int64_t pos) noexcept nogil:
    """The first position that the query at `pos` sees."""
    if a.chunked:
        return pos - pos % a.window
    return max(<int64_t>0, pos + 1 - a.window) if a.window else 0


cdef void attend(const Attention *a, Pass *p, int64_t head_kv, int64_t t0, int64_t t1, int ith,
                 AttendPart part, int64_t segment) noexcept nogil:
    """Attention of the query heads that share head_kv, tokens t0 <= t < t1, into p.attn: all of it
    (positions below MOE_F16_POSITIONS by ATTEND_F16), one segment of the keys into p.partials, or the merge of these."""
    cdef const float *q[Q_ROWS]
    cdef float *out[Q_ROWS]
    cdef int32_t n_kv[Q_ROWS]
    cdef int32_t kv_begin[Q_ROWS]
    cdef float sink[Q_ROWS]
    cdef int64_t t, h, n = 0, group = a.n_head // a.n_head_kv, n_segments, first
    cdef size_t stride
    cdef float *partials
    cdef uint16_t *k
    cdef uint16_t *v
    cdef moe_attn m
    cache_of(a, p, head_kv, &k, &v)
    for t in range(t0, t1):
        for h in range(group):
            q[n] = p.q + (t * a.n_head + head_kv * group + h) * a.head_dim_k
            out[n] = p.attn + (t * a.n_head + head_kv * group + h) * a.head_dim_v
            n_kv[n] = <int32_t>(p.n_past + t + 1)
            kv_begin[n] = <int32_t>first_key(a, p.n_past + t)
            sink[n] = a.sinks[head_kv * group + h] if a.sinks != NULL else 0
            n += 1
    m.head_dim_k = <size_t>a.head_dim_k
    m.head_dim_v = <size_t>a.head_dim_v
    m.n_q = <size_t>n
    m.q = q
    m.out = out
    m.n_kv = n_kv
    m.kv_begin = kv_begin if a.window else NULL
    m.k = k
    m.v = v
    m.k_tile_stride = m.v_tile_stride = <size_t>p.kv[a.kv].stride
    m.n_tiles = <size_t>p.kv[a.kv].n
    m.scale = a.scale
    m.softcap = a.softcap
    m.sink = sink if a.sinks != NULL else NULL
    m.scratch = p.thread_scratch + <size_t>ith * p.thread_scratch_bytes
    if part == ATTEND_ALL:
        p.isa.attention(&m)
        return
    if part == ATTEND_F16:
        p.isa.attention_f16(&m)
        return
    n_segments = (p.n_past + p.n_tokens + MOE_KV_SEGMENT - 1) // MOE_KV_SEGMENT
    stride = <size_t>n * moe_attn_partial_floats(<size_t>a.head_dim_v)
    partials = p.partials + <size_t>((t0 * a.n_head_kv + head_kv) * n_segments) * stride
    if part == ATTEND_SEGMENT:
        p.isa.attention_segment(&m, <size_t>segment, partials + <size_t>segment * stride)
    else:        # of one token: all rows see the same keys
        first = kv_begin[0] // MOE_KV_SEGMENT
        p.isa.attention_merge(&m, <size_t>((n_kv[0] + MOE_KV_SEGMENT - 1) // MOE_KV_SEGMENT - first),
                              partials + <size_t>first * stride, stride)


cdef void attend_all(const Attention *a, Pass *p, int ith) noexcept nogil:
    """Units are blocks of queries, the first positions apart from the others. Later blocks see more keys
    and come first, so that no thread is left with the most expensive one. Ends with a barrier."""
    cdef int64_t T = p.n_tokens, unit, b, t0, n_short = 0
    cdef int64_t n_tok = max(<int64_t>1, Q_ROWS // (a.n_head // a.n_head_kv))
    cdef int64_t n_short_blocks, n_blocks
    if a.softcap == 0:      # else stock has no sums in F16
        n_short = min(T, max(<int64_t>0, MOE_F16_POSITIONS - p.n_past))
    n_short_blocks = (n_short + n_tok - 1) // n_tok
    n_blocks = n_short_blocks + (T - n_short + n_tok - 1) // n_tok
    while True:
        unit = team_claim(p.team, n_blocks * a.n_head_kv)
        if unit < 0:
            break
        if cancelled(p):
            continue
        b = n_blocks - 1 - unit // a.n_head_kv
        if b < n_short_blocks:
            attend(a, p, unit % a.n_head_kv, b * n_tok, min(n_short, (b + 1) * n_tok), ith, ATTEND_F16, 0)
        else:
            t0 = n_short + (b - n_short_blocks) * n_tok
            attend(a, p, unit % a.n_head_kv, t0, min(T, t0 + n_tok), ith, ATTEND_ALL, 0)
    team_barrier(p.team)


cdef void attend_split(const Attention *a, Pass *p, int ith) noexcept nogil:
    """Few tokens over many keys: units are (token, KV head, segment of keys), merged afterwards."""
    cdef int64_t T = p.n_tokens, unit, K = a.n_head_kv, first = first_key(a, p.n_past) // MOE_KV_SEGMENT
    cdef int64_t S = (p.n_past + T + MOE_KV_SEGMENT - 1) // MOE_KV_SEGMENT - first, t, s
    while True:
        unit = team_claim(p.team, T * K * S)
        if unit < 0:
            break
        s, t = first + unit % S, unit // S // K
        if (s * MOE_KV_SEGMENT <= p.n_past + t and first_key(a, p.n_past + t) < (s + 1) * MOE_KV_SEGMENT
                and not cancelled(p)):
            attend(a, p, unit // S % K, t, t + 1, ith, ATTEND_SEGMENT, s)
    team_barrier(p.team)
    while True:
        unit = team_claim(p.team, T * K)
        if unit < 0:
            break
        if not cancelled(p):
            attend(a, p, unit % K, unit // K, unit // K + 1, ith, ATTEND_MERGE, 0)
    team_barrier(p.team)


cdef void attend_heads(const Attention *a, Pass *p, int ith) noexcept nogil:
    """Head norms, rope and attention of p.q over the cache, which p.k and p.v are added to, into p.attn. Ends with a barrier."""
    finish_qkv(a, p)
    if p.n_tokens <= SPLIT_TOKENS and p.n_past + p.n_tokens - first_key(a, p.n_past) > MOE_KV_SEGMENT:
        attend_split(a, p, ith)
    else:
        attend_all(a, p, ith)


cdef void part_gates(const Attention *a, Pass *p) noexcept nogil:
    """p.q = the queries of p.wide (T, H, 2, Dk), which keeps the gates. Ends with a barrier."""
    cdef int64_t t, h, D = a.head_dim_k, H = a.n_head
    while True:
        t = team_claim(p.team, p.n_tokens)
        if t < 0:
            break
        for h in range(H):
            memcpy(p.q + (t * H + h) * D, p.wide + (t * H + h) * 2 * D, <size_t>D * sizeof(float))
    team_barrier(p.team)


cdef void apply_softplus_gates(const Attention *a, Pass *p) noexcept nogil:
    """p.attn *= softplus(gates). Ends with a barrier."""
    cdef int64_t unit, i, D = a.head_dim_v
    cdef float *y
    while True:
        unit = team_claim(p.team, p.n_tokens * a.n_head)
        if unit < 0:
            break
        y = p.attn + unit * D
        if a.gate == GATE_HEADS:
            p.isa.scale(<size_t>D, softplus(p.wide[unit]), y, y)
            continue
        for i in range(D):
            y[i] = y[i] * softplus(p.wide[unit * D + i])
    team_barrier(p.team)


cdef void apply_gates(const Attention *a, Pass *p) noexcept nogil:
    """p.attn *= sigmoid(gates). Ends with a barrier."""
    cdef int64_t t, h, D = a.head_dim_v, H = a.n_head
    cdef float *y
    while True:
        t = team_claim(p.team, p.n_tokens)
        if t < 0:
            break
        y = p.attn + t * H * D
        if a.gate == GATE_VALUES:
            p.isa.sigmoid_mul(<size_t>(H * D), p.wide + t * H * D, y, y)
            continue
        for h in range(H):
            if a.gate == GATE_HEADS:
                p.isa.scale(<size_t>D, <float>1 / (<float>1 + expf(-p.wide[t * H + h])), y + h * D, y + h * D)
            else:
                p.isa.sigmoid_mul(<size_t>D, p.wide + ((t * H + h) * 2 + 1) * D, y + h * D, y + h * D)
    team_barrier(p.team)


cdef void attention_run(void *state, Pass *p, int ith, int nth) noexcept nogil:
    cdef const Attention *a = <const Attention *>state
    cdef int64_t T = p.n_tokens
    cdef const uint8_t *x[4]
    cdef size_t x_stride[4]
    cdef float *out[4]
    cdef int i, f
    read_stream(p, &a.norm, a.formats, a.n_embd)
    for i in range(a.n_qkv):
        f = a.qkv[i].type.x_format
        x[i] = p.xq[f]
        x_stride[i] = moe_x_row_bytes(p.isa, f, <size_t>a.n_embd)
    out[0] = p.wide if a.gate == GATE_IN_Q else p.q
    out[1] = p.k
    out[2] = p.wide if a.values_are_keys else p.v
    out[3] = p.wide
    linear(p, a.qkv, a.n_qkv, x, x_stride, out, T)
    if a.gate == GATE_IN_Q:
        part_gates(a, p)

    if a.norm_whole_row:
        norm_whole_rows(a, p)
    attend_heads(a, p, ith)
    if a.softplus_gate:
        apply_softplus_gates(a, p)
    elif a.gate != GATE_NONE:
        apply_gates(a, p)

    f = a.wo.type.x_format
    quantize_rows(p, p.attn, T, a.n_head * a.head_dim_v, <size_t>(a.n_head * a.head_dim_v), f, p.aq)
    x[0] = p.aq
    x_stride[0] = moe_x_row_bytes(p.isa, f, <size_t>(a.n_head * a.head_dim_v))
    out[0] = p.out
    linear(p, &a.wo, 1, x, x_stride, out, T)
    add_residual(p, a.n_embd, &a.residual)


cdef class AttentionBlock(Block):
    """x += residual_scale * post_norm(wo(attention(norm(x)))).

    Parameters
    ----------
    attn_norm : Vector (E,)
    norm_bias : Vector (E,) or None
    centred, of_kept : bool        see StreamNorm
    q, k, o : Weight               (H*Dk, E), (K*Dk, E), (E, H*Dv)
    v : Weight (K*Dv, E) or None   None: values are what k gives, before its norm; Dv is Dk
    q_norm, k_norm : Vector or None    per head (Dk,) or, with norm_whole_row, (H*Dk,) and (K*Dk,)
    norm_after_rope : bool         head norms come after the rotation, not before
    norm_values : bool             values are normed a head, without a weight
    n_rot : int                    rotated values of a head
    rope_at : int                  n_rot of all tables of angles before this layer's, see EmbedBlock
    neox : bool                    rope pairs i with i + n_rot/2; else 2i with 2i+1
    scale : float                  of the scores, usually 1/sqrt(Dk)
    q_scale : float                of the queries; they are rounded to F16 after it, but the scores before theirs
    kv_offset : int                elements a position of all earlier layers in the cache, of those with a window or of the others
    softcap : float                c > 0: scores become c * tanh(score / c)
    clamp : float                  bound of queries, keys and values as their matrices give them; 0: none
    temperature : (scale, length, offset)    see Temperature
    window : int                   keys a query sees, its own included; 0: all before it
    chunked : bool                 positions are cut into chunks of `window`, and a query sees those of its own chunk before it
    sinks : Vector (H,) or None    a logit a head that takes part in the softmax without a value
    with_gate : bool               q is (H * 2 * Dk, E): a gate, whose sigmoid the result is multiplied with, follows every
                                   head; Dv is Dk
    gate : Weight or None          (H*Dv, E) or (H, E): gates of their own, one a value or one a head
    softplus_gate : bool           the result is multiplied with the softplus of `gate`, not its sigmoid
    post_norm : Vector (E,) or None
    """

    def __init__(self, *, Vector attn_norm, Weight q, Weight k, v, Weight o, q_norm, k_norm,
                 bint norm_whole_row, int n_head, int n_head_kv, int head_dim_k, int head_dim_v,
                 int n_rot, bint neox, float eps, float scale, int64_t kv_offset, bint norm_after_rope=False,
                 norm_bias=None, float q_scale=1.0, float residual_scale=1.0, int64_t window=0, sinks=None,
                 bint with_gate=False, gate=None, int rope_at=0, bint norm_values=False, post_norm=None,
                 bint chunked=False, tuple temperature=(0, 1, 0), float softcap=0, float clamp=0,
                 bint centred=False, bint of_kept=False, bint softplus_gate=False):
        if n_head // n_head_kv > Q_ROWS:
            raise UnsupportedError(f"{n_head // n_head_kv} query heads a KV head: at most {Q_ROWS} are supported")
        cdef Attention *a = <Attention *>calloc(1, sizeof(Attention))
        if a == NULL:
            raise MemoryError
        self.state = a
        self.run = attention_run
        self.keep = [attn_norm, norm_bias, q, k, v, o, q_norm, k_norm, sinks, gate, post_norm]
        a.n_embd, a.n_head, a.n_head_kv = q.linear.n_in, n_head, n_head_kv
        a.head_dim_k, a.head_dim_v, a.n_rot, a.neox = head_dim_k, head_dim_v, n_rot, neox
        a.eps, a.scale, a.q_scale, a.kv_offset, a.rope_at = eps, scale, q_scale, kv_offset, rope_at
        residual_init(&a.residual, residual_scale, post_norm, eps, 1)
        stream_norm_init(&a.norm, attn_norm, norm_bias, eps, centred, of_kept)
        a.wo, a.softcap, a.clamp = o.linear, softcap, clamp
        for weight in (q, k, v, gate):
            if weight is not None:
                a.qkv[a.n_qkv] = (<Weight?>weight).linear
                a.formats |= 1u << a.qkv[a.n_qkv].type.x_format
                a.n_qkv += 1
        a.values_are_keys, a.norm_values = v is None, norm_values
        a.q_norm, a.k_norm = values_of(q_norm), values_of(k_norm)
        a.norm_whole_row, a.norm_after_rope = norm_whole_row, norm_after_rope
        a.gate = GATE_IN_Q if with_gate else GATE_NONE
        if gate is not None:
            a.gate = GATE_HEADS if gate.n_rows == n_head else GATE_VALUES
            a.softplus_gate = softplus_gate
        a.window, a.chunked, a.sinks, a.kv = window, chunked, values_of(sinks), KV_WINDOW if window else KV_WHOLE
        a.temperature.scale, a.temperature.length, a.temperature.offset = temperature

    def __dealloc__(self):
        free(self.state)
