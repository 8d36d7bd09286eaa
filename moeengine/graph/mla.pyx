"""Latent attention (MLA): keys and values of all heads are made from one short row a position, the latent, and a small
rotated part that all heads share.

Two forms, as files come. Absorbed: the cache keeps latent and rotated part alone; the half of the up-projection that
would make keys is applied to the queries instead (k_b), the half that would make values to the results (v_b). All heads
then read the same keys, and a value is the beginning of its key. Plain: keys and values of every head are made (kv_b)
and kept.

The absorbed queries are wide (a latent a head), so a chunk's attention goes through some tokens at a time; no token sees
which others went with it.
"""
from libc.math cimport sqrtf
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from moeengine.graph.attention cimport attend_heads
from moeengine.graph.block cimport (
    KV_WHOLE, Block, Linear, Pass, add_residual, cancelled, even_chunk, linear, linear_chunk, norm_rows, quantize_rows,
    row_chunk, x_chunk,
)
from moeengine.graph.chosen_keys cimport ChosenRoom, choose_positions, finish_key, lay_out, n_dense
from moeengine.graph.latent_attend cimport attend_latents
from moeengine.graph.latent_state cimport Latent, head_dim, latent_row
from moeengine.graph.recurrent_heads cimport sigmoid
from moeengine.graph.temperature cimport temperature
from moeengine.graph.weights cimport Vector, Weight, values_of
from moeengine.kernels.table cimport MOE_KV_TILE, checked_isa, moe_x_row_bytes
from moeengine.kernels.threads cimport team_barrier, team_claim, team_size

cdef enum:
    ROWS_A_UNIT = 16      # (token, head) rows that are quantized by one unit of work
    MAX_DOWN = 5          # products of the normed rows


cdef inline void rotate(const Latent *m, Pass *p, int64_t t, float *x) noexcept nogil:
    if m.with_rope:
        p.isa.rope(<size_t>m.n_rot, p.rope + t * m.n_rot, m.neox, x)


cdef void finish_latents(const Latent *m, Pass *p, int64_t tile) noexcept nogil:
    """Norm and rotation of this chunk's latents (p.wide) in one tile of the cache, which absorbed ones go to."""
    cdef int64_t t0 = max(<int64_t>0, tile * MOE_KV_TILE - p.n_past), t
    cdef int64_t t1 = min(p.n_tokens, (tile + 1) * MOE_KV_TILE - p.n_past), n = latent_row(m)
    cdef float *row
    for t in range(t0, t1):
        row = p.wide + t * n
        p.isa.rms_norm(<size_t>m.n_lora, row, m.kv_a_norm, m.eps, row)
        rotate(m, p, t, row + m.n_lora)
    if m.absorbed:
        p.isa.k_store(<size_t>(t1 - t0), <size_t>n, <size_t>(p.n_past + t0), p.wide + t0 * n, <size_t>n,
                      p.kv[KV_WHOLE].at + m.kv_offset * MOE_KV_TILE, <size_t>p.kv[KV_WHOLE].stride)


cdef inline uint8_t *index_rows(const Latent *m, Pass *p) noexcept nogil:
    """Quantized latents of queries (T, n_lora_q) that the indexer's are made of."""
    return <uint8_t *>(p.wide + m.chosen.low_at * p.n_tokens) if m.chosen.low_at >= 0 else p.aq


cdef void finish_down(const Latent *m, Pass *p) noexcept nogil:
    """Latents of keys and values finished, those of queries (p.k) normed and quantized into p.aq. Ends with a barrier."""
    cdef int64_t first = p.n_past // MOE_KV_TILE, n_tiles = (p.n_past + p.n_tokens - 1) // MOE_KV_TILE - first + 1
    cdef int64_t n = m.n_lora_q, unit, t
    cdef int f = m.q_b.type.x_format if n else 0, g
    cdef float *row
    while True:
        unit = team_claim(p.team, n_tiles + (p.n_tokens if n else 0))
        if unit < 0:
            break
        if unit < n_tiles:
            finish_latents(m, p, first + unit)
            continue
        t = unit - n_tiles
        row = p.k + t * n
        p.isa.rms_norm(<size_t>n, row, m.q_a_norm, m.eps, row)
        p.isa.x[f].quantize_row(<size_t>n, row, p.aq + <size_t>t * moe_x_row_bytes(p.isa, f, <size_t>n))
        if m.chosen.has_index:
            finish_key(&m.chosen, p, t)
            if m.chosen.low_at >= 0:
                g = m.chosen.index.q_b.type.x_format
                p.isa.x[g].quantize_row(<size_t>n, row, index_rows(m, p) + <size_t>t * moe_x_row_bytes(p.isa, g, <size_t>n))
    team_barrier(p.team)


cdef void make_queries(const Latent *m, Pass *p) noexcept nogil:
    """p.q and the indexer's queries of their latents. Ends with a barrier."""
    cdef Linear w[2]
    cdef const uint8_t *x[2]
    cdef size_t stride[2]
    cdef float *out[2]
    cdef int i, n = 2 if m.chosen.has_index else 1
    w[0], w[1] = m.q_b, m.chosen.index.q_b
    x[0], x[1] = p.aq, index_rows(m, p)
    out[0], out[1] = p.q, p.wide + m.chosen.index.q_at * p.n_tokens
    for i in range(n):
        stride[i] = moe_x_row_bytes(p.isa, w[i].type.x_format, <size_t>m.n_lora_q)
    linear(p, w, n, x, stride, out, p.n_tokens)


cdef void product(Pass *p, const Linear *w, const uint8_t *x, float *out) noexcept nogil:
    """out (T, n_rows) of T quantized rows. Ends with a barrier."""
    cdef size_t stride = moe_x_row_bytes(p.isa, w.type.x_format, <size_t>w.n_in)
    linear(p, w, 1, &x, &stride, &out, p.n_tokens)


# The plain form.

cdef void make_heads(const Latent *m, Pass *p) noexcept nogil:
    """p.q rotated; p.k and p.v from what kv_b made, which lies behind the latents in p.wide. Ends with a barrier."""
    cdef int64_t t, h, H = m.n_head, D = head_dim(m), Dv = m.head_dim_v
    cdef const float *latent
    cdef const float *made
    cdef float *q
    cdef float *k
    while True:
        t = team_claim(p.team, p.n_tokens)
        if t < 0:
            break
        latent = p.wide + t * latent_row(m)
        made = p.wide + p.n_tokens * latent_row(m) + t * H * (m.n_nope + Dv)
        for h in range(H):
            q = p.q + (t * H + h) * D
            k = p.k + (t * H + h) * D
            rotate(m, p, t, q + m.n_nope)
            if m.temperature.scale != 0:
                p.isa.scale(<size_t>D, temperature(&m.temperature, p.n_past + t), q, q)
            memcpy(k, made, <size_t>m.n_nope * sizeof(float))
            memcpy(k + m.n_nope, latent + m.n_lora, <size_t>m.n_rot * sizeof(float))
            memcpy(p.v + (t * H + h) * Dv, made + m.n_nope, <size_t>Dv * sizeof(float))
            made += m.n_nope + Dv
    team_barrier(p.team)


cdef void attend_plain(const Latent *m, Pass *p, int ith) noexcept nogil:
    quantize_rows(p, p.wide, p.n_tokens, m.n_lora, <size_t>latent_row(m), m.kv_b.type.x_format, p.aq)
    product(p, &m.kv_b, p.aq, p.wide + p.n_tokens * latent_row(m))
    make_heads(m, p)
    attend_heads(&m.heads, p, ith)


# The absorbed form. Rows are (token, head) pairs of some tokens from t0 on: row r is head r % H of token t0 + r / H.
# Those in p.latent_rows are queries before attention and results after it, latent_row(m) floats apart.

cdef void queries_of_rows(const Latent *m, Pass *p, int64_t t0, int64_t n_rows) noexcept nogil:
    """Rotated parts to their place behind the latent, the others quantized for k_b. Ends with a barrier."""
    cdef int64_t unit, r, t, H = m.n_head
    cdef int f = m.k_b.type.x_format
    cdef size_t row_bytes = moe_x_row_bytes(p.isa, f, <size_t>m.n_nope)
    cdef float *q
    while True:
        unit = team_claim(p.team, (n_rows + ROWS_A_UNIT - 1) // ROWS_A_UNIT)
        if unit < 0:
            break
        for r in range(unit * ROWS_A_UNIT, min(n_rows, (unit + 1) * ROWS_A_UNIT)):
            t = t0 + r // H
            q = p.q + (t0 * H + r) * head_dim(m)
            rotate(m, p, t, q + m.n_nope)
            memcpy(p.latent_rows + r * latent_row(m) + m.n_lora, q + m.n_nope, <size_t>m.n_rot * sizeof(float))
            p.isa.x[f].quantize_row(<size_t>m.n_nope, q, p.latent_xq + <size_t>r * row_bytes)
    team_barrier(p.team)


cdef void head_products(Pass *p, const Linear *w, int64_t H, int64_t T, float *out, int64_t out_row) noexcept nogil:
    """Every head's own product with its rows of p.latent_xq; w holds the heads' matrices one after the other. Row r of the
    results is at out + r * out_row. Ends with a barrier."""
    cdef size_t row_bytes = moe_x_row_bytes(p.isa, w.type.x_format, <size_t>w.n_in)
    cdef int64_t n = w.n_rows // H, n_tok = x_chunk(row_bytes, T), n_x = (T + n_tok - 1) // n_tok
    cdef int64_t n_r = even_chunk(n, row_chunk(p, w.n_rows * n_x, T)), n_chunks = (n + n_r - 1) // n_r
    cdef int64_t n_units = H * n_chunks * n_x, unit, after, h, r, t
    cdef Linear head = w[0]
    cdef const uint8_t *next_w
    while True:
        unit = team_claim(p.team, n_units)
        if unit < 0:
            break
        if cancelled(p):
            continue
        h, r, t = unit // n_chunks % H, unit % n_chunks * n_r, unit // n_chunks // H * n_tok
        after = (unit + team_size(p.team)) % (H * n_chunks)
        next_w = w.w + <size_t>(after // n_chunks * n + after % n_chunks * n_r) * w.row_bytes
        head.w = w.w + <size_t>(h * n) * w.row_bytes
        linear_chunk(p.isa, &head, r, min(n, r + n_r), min(n_tok, T - t), p.latent_xq + <size_t>(t * H + h) * row_bytes,
                     <size_t>H * row_bytes, out + (t * H + h) * out_row, <size_t>(H * out_row),
                     next_w if unit + team_size(p.team) < n_units else NULL)
    team_barrier(p.team)


cdef void scale_rows(const Latent *m, Pass *p, int64_t t0, int64_t n_rows) noexcept nogil:
    """Queries by the temperature of their position. Ends with a barrier."""
    cdef int64_t r, n = latent_row(m)
    while True:
        r = team_claim(p.team, n_rows)
        if r < 0:
            break
        p.isa.scale(<size_t>n, temperature(&m.temperature, p.n_past + t0 + r // m.n_head), p.latent_rows + r * n,
                    p.latent_rows + r * n)
    team_barrier(p.team)


cdef void quantize_results(const Latent *m, Pass *p, int64_t n_rows) noexcept nogil:
    """For v_b. Ends with a barrier."""
    cdef int64_t unit, r
    cdef int f = m.v_b.type.x_format
    cdef size_t row_bytes = moe_x_row_bytes(p.isa, f, <size_t>m.n_lora)
    while True:
        unit = team_claim(p.team, (n_rows + ROWS_A_UNIT - 1) // ROWS_A_UNIT)
        if unit < 0:
            break
        for r in range(unit * ROWS_A_UNIT, min(n_rows, (unit + 1) * ROWS_A_UNIT)):
            p.isa.x[f].quantize_row(<size_t>m.n_lora, p.latent_rows + r * latent_row(m), p.latent_xq + <size_t>r * row_bytes)
    team_barrier(p.team)


cdef void attend_absorbed(const Latent *m, Pass *p, int ith, int nth) noexcept nogil:
    """p.attn of all tokens, as many at a time as p.latent_rows holds. p.attn may be p.q: a token's queries are done with."""
    cdef int64_t t0 = 0, n, H = m.n_head
    cdef ChosenRoom room
    if m.chosen.has_index and n_dense(&m.chosen, p.n_past, p.n_tokens) < p.n_tokens:
        lay_out(&m.chosen, p.n_ctx, p.n_tokens, nth, latent_row(m), p.extra, &room)
        choose_positions(&m.chosen, p, &room, ith, nth)
    while t0 < p.n_tokens:
        n = min(p.n_tokens - t0, p.latent_tokens)
        queries_of_rows(m, p, t0, n * H)
        head_products(p, &m.k_b, H, n, p.latent_rows, latent_row(m))
        if m.temperature.scale != 0:
            scale_rows(m, p, t0, n * H)
        attend_latents(m, p, t0, n, ith, nth)
        quantize_results(m, p, n * H)
        head_products(p, &m.v_b, H, n, p.attn + t0 * H * m.head_dim_v, m.head_dim_v)
        t0 += n


cdef void apply_gates(const Latent *m, Pass *p) noexcept nogil:
    """p.attn *= sigmoid(gates). Ends with a barrier."""
    cdef int64_t unit, D = m.head_dim_v, n = m.gate_rows // m.n_head      # of a head
    cdef const float *gates = p.wide + m.gate_at * p.n_tokens
    cdef float *y
    while True:
        unit = team_claim(p.team, p.n_tokens * m.n_head)
        if unit < 0:
            break
        y = p.attn + unit * D
        if n == D:
            p.isa.sigmoid_mul(<size_t>D, gates + unit * n, y, y)
        else:
            p.isa.scale(<size_t>D, sigmoid(gates[unit]), y, y)
    team_barrier(p.team)


cdef void latent_run(void *state, Pass *p, int ith, int nth) noexcept nogil:
    cdef const Latent *m = <const Latent *>state
    cdef int64_t T = p.n_tokens, n = m.n_head * m.head_dim_v
    cdef const uint8_t *x[MAX_DOWN]
    cdef size_t x_stride[MAX_DOWN]
    cdef float *out[MAX_DOWN]
    cdef int i, f
    norm_rows(p, m.attn_norm, m.eps, m.formats, m.n_embd)
    for i in range(m.n_down):
        f = m.down[i].type.x_format
        x[i] = p.xq[f]
        x_stride[i] = moe_x_row_bytes(p.isa, f, <size_t>m.n_embd)
    out[0] = p.k if m.n_lora_q else p.q
    out[1] = p.wide
    for i in range(2, m.n_down):
        out[i] = p.wide + m.down_at[i] * T
    linear(p, m.down, m.n_down, x, x_stride, out, T)
    finish_down(m, p)
    if m.n_lora_q:
        make_queries(m, p)

    if m.absorbed:
        attend_absorbed(m, p, ith, nth)
    else:
        attend_plain(m, p, ith)

    if m.gate_rows:
        apply_gates(m, p)
    quantize_rows(p, p.attn, T, n, <size_t>n, m.wo.type.x_format, p.aq)
    product(p, &m.wo, p.aq, p.out)
    add_residual(p, m.n_embd, NULL)


cdef class LatentAttentionBlock(Block):
    """x += wo(attention(norm(x))) with keys and values made from latents; D = n_nope + n_rot, L = n_lora.

    Parameters
    ----------
    attn_norm : Vector (E,)
    q : Weight                         (H*D, E), or with q_b (n_lora_q, E)
    q_a_norm : Vector (n_lora_q,) or None
    q_b : Weight (H*D, n_lora_q) or None
    kv_a : Weight (L + n_rot, E)       the latent, then the part that is rotated
    kv_a_norm : Vector (L,)            of the latent alone
    k_b, v_b : Weight or None          absorbed: (H*L, n_nope), (H*Dv, L), head after head
    kv_b : Weight or None              plain: (H*(n_nope + Dv), L), a head's keys before its values
    o : Weight (E, H*Dv)
    scale : float                      of the scores
    temperature_scale, temperature_length : queries are multiplied with log(floor(pos / length) + 1) * scale + 1
    kv_offset : int                    elements a position of all earlier layers in the cache
    neox : bool                        see AttentionBlock
    gate : Weight or None              (H, E) or (H*Dv, E): the result is multiplied with the sigmoid of a gate a head, or a value
    sinks : Vector (H,) or None        absorbed: see AttentionBlock
    top_k : int                        absorbed: positions that a token may attend to, of which an indexer chooses; 0: all
    index : dict or None               the indexer; None: the choice is that of the layer before
        k, proj, q : Weight            (dim, E), (heads, E), (heads * dim, n_lora_q)
        k_norm, k_bias : Vector (dim,) of the keys
        eps : float                    of that norm
        n_rot, rot_at, neox            how many values are rotated, from which on, and in which pairs
        hadamard : bool                queries and keys are turned
    """
    cdef readonly int64_t n_wide       # floats a token of Pass.wide

    def __init__(self, *, Vector attn_norm, Weight q, q_a_norm, q_b, Weight kv_a, Vector kv_a_norm, k_b, v_b, kv_b,
                 Weight o, int n_head, int n_nope, int n_rot, int head_dim_v, float eps, float scale, int64_t kv_offset,
                 double temperature_scale=0, double temperature_length=1, bint with_rope=True, bint neox=False,
                 gate=None, sinks=None, int64_t top_k=0, index=None):
        cdef Latent *m = <Latent *>calloc(1, sizeof(Latent))
        if m == NULL:
            raise MemoryError
        self.state = m
        self.run = latent_run
        self.keep = [attn_norm, q, q_a_norm, q_b, kv_a, kv_a_norm, k_b, v_b, kv_b, o, gate, sinks]
        m.n_embd, m.n_head, m.n_lora, m.n_nope, m.n_rot = q.linear.n_in, n_head, kv_a_norm.size, n_nope, n_rot
        m.head_dim_v, m.eps, m.scale, m.kv_offset, m.absorbed = head_dim_v, eps, scale, kv_offset, kv_b is None
        m.temperature.scale, m.temperature.length = temperature_scale, temperature_length
        m.with_rope, m.neox, m.sinks = with_rope, neox, values_of(sinks)
        m.attn_norm, m.kv_a_norm = attn_norm.data, kv_a_norm.data
        m.down[0], m.down[1], m.n_down, m.wo = q.linear, kv_a.linear, 2, o.linear
        m.formats = 1u << q.linear.type.x_format | 1u << kv_a.linear.type.x_format
        if q_b is not None:
            m.q_b, m.n_lora_q, m.q_a_norm = (<Weight?>q_b).linear, q.linear.n_rows, (<Vector?>q_a_norm).data
        self.n_wide = latent_row(m) if m.absorbed else latent_row(m) + n_head * (n_nope + head_dim_v)
        if gate is not None:
            m.gate_rows, m.gate_at = (<Weight?>gate).linear.n_rows, self._down(gate)
        if m.absorbed:
            m.k_b, m.v_b = (<Weight?>k_b).linear, (<Weight?>v_b).linear
            m.chosen.on, m.chosen.index.top_k = top_k > 0, top_k
            if index is not None:
                self.keep.append(index)
                self._index(index)
            return
        m.kv_b = (<Weight?>kv_b).linear
        m.heads.n_head = m.heads.n_head_kv = n_head
        m.heads.head_dim_k, m.heads.head_dim_v, m.heads.scale, m.heads.q_scale = n_nope + n_rot, head_dim_v, scale, 1
        m.heads.kv_offset = kv_offset

    cdef int64_t _room(self, int64_t n):
        """Place for n floats a token in Pass.wide."""
        cdef int64_t at = (self.n_wide + 15) // 16 * 16
        self.n_wide = at + n
        return at

    cdef int64_t _down(self, Weight w):
        """One more product of the normed rows; where its result will lie."""
        cdef Latent *m = <Latent *>self.state
        cdef int i = m.n_down
        m.down[i], m.down_at[i] = w.linear, self._room(w.linear.n_rows)
        m.formats |= 1u << w.linear.type.x_format
        m.n_down += 1
        return m.down_at[i]

    cdef _index(self, dict index):
        cdef Latent *m = <Latent *>self.state
        cdef Weight k = index["k"], proj = index["proj"], q = index["q"]
        cdef Vector norm = index["k_norm"], bias = index["k_bias"]
        cdef int64_t D = k.linear.n_rows, H = proj.linear.n_rows
        cdef int f = q.linear.type.x_format
        c, x = &m.chosen, &m.chosen.index
        c.has_index, c.eps, c.k_norm, c.k_bias = True, index["eps"], norm.data, bias.data
        x.n_head, x.q_b, x.neox, x.rot_at = H, q.linear, index["neox"], index["rot_at"]
        x.scale = <float>1 / sqrtf(<float>(D * H))
        x.row_bytes = moe_x_row_bytes(checked_isa(), checked_isa().types[0].x_format, <size_t>D)
        x.keys.ratio, x.keys.dim, x.keys.elements, x.keys.n_rot = 1, D, D, index["n_rot"]
        x.keys.cache_offset, x.keys.hadamard = m.kv_offset + latent_row(m), index["hadamard"]
        c.k_at, x.weights_at, x.q_at = self._down(k), self._down(proj), self._room(H * D)
        x.rows_at = self._room(H * <int64_t>x.row_bytes // 4)
        c.low_at = -1
        if f != m.q_b.type.x_format:
            c.low_at = self._room(<int64_t>moe_x_row_bytes(checked_isa(), f, <size_t>m.n_lora_q) // 4)

    def extra_bytes(self, n_ctx, n_tokens, n_threads):
        """Bytes of Pass.extra."""
        cdef const Latent *m = <const Latent *>self.state
        cdef ChosenRoom room
        return lay_out(&m.chosen, n_ctx, n_tokens, n_threads, latent_row(m), NULL, &room)

    def __dealloc__(self):
        free(self.state)
