"""The keys that a token sees, window and compressed ones, gathered in one order; attention to them, a few tokens at a time."""
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t
from libc.string cimport memset

from moeengine.graph.block cimport Pass, cancelled
from moeengine.graph.compressed_state cimport CompressedAttention, angles, most_compressed, window_key
from moeengine.graph.compressor cimport copy_key, key_scratch, n_keys
from moeengine.graph.indexer cimport INDEX_KEYS, choose_keys, score_keys, score_scratch
from moeengine.kernels.region cimport take
from moeengine.kernels.table cimport MOE_F16_POSITIONS, MOE_KV_TILE, moe_attn
from moeengine.kernels.threads cimport team_barrier, team_claim

cdef enum:
    MAX_ROWS = 128           # query rows of one call of attention


cdef size_t lay_out(const CompressedAttention *a, int64_t n_ctx, int64_t n_threads, uint8_t *base, Room *r) noexcept nogil:
    cdef size_t at = 0, B = <size_t>n_threads
    r.n_tiles = (min(a.window, n_ctx) + most_compressed(a, n_ctx) + MOE_KV_TILE - 1) // MOE_KV_TILE
    r.n_scores = n_ctx // 4 + INDEX_KEYS if a.ratio == 4 else 0
    r.thread_bytes = <size_t>(MOE_KV_TILE * a.dim * 4 + (a.dim * 2 + 63) // 64 * 64)
    if a.ratio:
        r.thread_bytes = max(r.thread_bytes, <size_t>key_scratch(&a.keys) * 4)
    if a.ratio == 4:
        r.thread_bytes = max(r.thread_bytes, max(<size_t>key_scratch(&a.index.keys) * 4, score_scratch(&a.index)))
    r.thread_bytes = (r.thread_bytes + 63) & ~<size_t>63
    r.tiles = <uint16_t *>take(base, &at, B * <size_t>(r.n_tiles * MOE_KV_TILE * a.dim) * sizeof(uint16_t))
    r.scores = <float *>take(base, &at, B * <size_t>r.n_scores * sizeof(float))
    r.ids = <int32_t *>take(base, &at, B * <size_t>(most_compressed(a, n_ctx) + 1) * sizeof(int32_t))
    r.thread = take(base, &at, B * r.thread_bytes)
    return at


cdef inline int64_t n_window(const CompressedAttention *a, int64_t pos) noexcept nogil:
    return min(a.window, pos + 1)


cdef inline int64_t n_seen(const CompressedAttention *a, int64_t pos) noexcept nogil:
    """Keys that the token at `pos` sees."""
    return n_window(a, pos) + most_compressed(a, pos + 1)


cdef inline bint has_choice(const CompressedAttention *a, int64_t pos) noexcept nogil:
    return a.ratio == 4 and n_keys(&a.keys, pos + 1) > a.index.top_k


cdef inline int64_t ids_stride(const CompressedAttention *a, const Pass *p) noexcept nogil:
    return most_compressed(a, p.n_ctx) + 1


cdef void choose(const CompressedAttention *a, Pass *p, Room *r, int64_t t0, int64_t n, uint8_t *scratch) noexcept nogil:
    """r.ids: the compressed keys that each of the n tokens from t0 on attends to, where it sees more than it may."""
    cdef int64_t unit, t, last = p.n_past + t0 + n - 1
    if not has_choice(a, last):
        return
    while True:
        unit = team_claim(p.team, (n_keys(&a.keys, last + 1) + INDEX_KEYS - 1) // INDEX_KEYS)
        if unit < 0:
            break
        if not cancelled(p):
            score_keys(&a.index, p, t0, n, unit * INDEX_KEYS, r.scores, r.n_scores, scratch)
    team_barrier(p.team)
    while True:
        unit = team_claim(p.team, n)
        if unit < 0:
            break
        t = p.n_past + t0 + unit
        if has_choice(a, t):
            choose_keys(r.scores + unit * r.n_scores, n_keys(&a.keys, t + 1), a.index.top_k, r.ids + unit * ids_stride(a, p))
    team_barrier(p.team)


cdef void gather_tile(const CompressedAttention *a, Pass *p, const Room *r, int64_t t0, int64_t b, int64_t tile,
                      uint8_t *scratch) noexcept nogil:
    """One tile of the keys that token t0 + b sees."""
    cdef int64_t pos = p.n_past + t0 + b, near = n_window(a, pos), n = n_seen(a, pos), D = a.dim, j, i
    cdef float *rows = <float *>scratch
    cdef uint16_t *halves = <uint16_t *>(rows + MOE_KV_TILE * D)
    cdef const uint16_t *key
    for j in range(tile * MOE_KV_TILE, min(n, (tile + 1) * MOE_KV_TILE)):
        if j < near:
            key = window_key(a, p, pos + 1 - near + j)
        else:
            i = j - near
            if has_choice(a, pos):
                i = r.ids[b * ids_stride(a, p) + i]
            copy_key(&a.keys, p, i, halves)
            key = halves
        p.isa.f16_to_f32(<size_t>D, key, rows + j % MOE_KV_TILE * D)
    j = min(n - tile * MOE_KV_TILE, <int64_t>MOE_KV_TILE)
    if j > 0:
        p.isa.k_store(<size_t>j, <size_t>D, 0, rows, <size_t>D, r.tiles + (b * r.n_tiles + tile) * MOE_KV_TILE * D,
                      <size_t>(MOE_KV_TILE * D))


cdef void attend(const CompressedAttention *a, Pass *p, const Room *r, int64_t t, int64_t b, int64_t h0, int64_t h1,
                 uint8_t *scratch) noexcept nogil:
    """Heads h0 <= h < h1 of token t, whose keys lie in the tiles of number b; rotated back."""
    cdef const float *q[MAX_ROWS]
    cdef float *out[MAX_ROWS]
    cdef int32_t n_kv[MAX_ROWS]
    cdef int64_t h, pos = p.n_past + t
    cdef moe_attn m
    for h in range(h1 - h0):
        q[h] = p.q + (t * a.n_head + h0 + h) * a.dim
        out[h] = p.attn + (t * a.n_head + h0 + h) * a.dim
        n_kv[h] = <int32_t>n_seen(a, pos)
    memset(&m, 0, sizeof(m))
    m.head_dim_k = m.head_dim_v = <size_t>a.dim
    m.n_q = <size_t>(h1 - h0)
    m.q = q
    m.out = out
    m.n_kv = n_kv
    m.k = r.tiles + b * r.n_tiles * MOE_KV_TILE * a.dim
    m.k_tile_stride = <size_t>(MOE_KV_TILE * a.dim)
    m.scale = a.scale
    m.sink = a.sinks + h0
    m.scratch = scratch
    if pos < MOE_F16_POSITIONS:
        p.isa.attention_f16(&m)
    else:
        p.isa.attention(&m)
    for h in range(h1 - h0):
        p.isa.rope(<size_t>a.n_rot, angles(a, p, t, 1), 0, out[h] + a.dim - a.n_rot)


cdef void attend_all(const CompressedAttention *a, Pass *p, Room *r, int ith, int nth) noexcept nogil:
    """As many tokens at once as there are threads; fewer share the heads of a token."""
    cdef int64_t t0 = 0, n, unit, n_tiles, n_parts, n_heads, h0
    cdef uint8_t *scratch = r.thread + <size_t>ith * r.thread_bytes
    cdef uint8_t *attn_scratch = p.thread_scratch + <size_t>ith * p.thread_scratch_bytes
    while t0 < p.n_tokens:
        n = min(<int64_t>nth, p.n_tokens - t0)
        choose(a, p, r, t0, n, scratch)
        n_tiles = (n_seen(a, p.n_past + t0 + n - 1) + MOE_KV_TILE - 1) // MOE_KV_TILE
        while True:
            unit = team_claim(p.team, n * n_tiles)
            if unit < 0:
                break
            if not cancelled(p):
                gather_tile(a, p, r, t0, unit // n_tiles, unit % n_tiles, scratch)
        team_barrier(p.team)
        n_parts = max((nth + n - 1) // n, (a.n_head + MAX_ROWS - 1) // MAX_ROWS)
        n_heads = (a.n_head + n_parts - 1) // n_parts
        while True:
            unit = team_claim(p.team, n * n_parts)
            if unit < 0:
                break
            h0 = unit % n_parts * n_heads
            if h0 < a.n_head and not cancelled(p):
                attend(a, p, r, t0 + unit // n_parts, unit // n_parts, h0, min(a.n_head, h0 + n_heads), attn_scratch)
        team_barrier(p.team)
        t0 += n
