"""Attention of absorbed queries over latents: all of them, a segment at a time where tokens are few, or those that were chosen."""
from libc.stdint cimport int32_t, int64_t, uint16_t
from libc.string cimport memset

from moeengine.graph.attention cimport Q_ROWS, SPLIT_TOKENS
from moeengine.graph.block cimport KV_WHOLE, Pass, UNITS_A_THREAD, cancelled
from moeengine.graph.chosen_keys cimport ChosenRoom, gather_tile, lay_out, n_dense
from moeengine.graph.latent_state cimport Latent, latent_row
from moeengine.kernels.table cimport (
    MOE_F16_POSITIONS, MOE_KV_SEGMENT, MOE_KV_TILE, moe_attn, moe_attn_partial_floats,
)
from moeengine.kernels.threads cimport team_barrier, team_claim, team_size

cdef enum:
    LEAST_Q_ROWS = 8      # query rows that a unit of attention has at least: what the kernel takes at once


cdef enum Part:
    PART_ALL
    PART_F16
    PART_SEGMENT
    PART_MERGE


cdef void attend(const Latent *m, Pass *p, int64_t t0, int64_t r0, int64_t r1, int ith, Part part, int64_t segment,
                 float *partials) noexcept nogil:
    """Attention of the rows r0 <= r < r1, in place; or one segment of the keys into `partials`, or the merge of these."""
    cdef float *rows[Q_ROWS]
    cdef float sinks[Q_ROWS]
    cdef int32_t n_kv[Q_ROWS]
    cdef int64_t i, n_segments = (p.n_past + p.n_tokens + MOE_KV_SEGMENT - 1) // MOE_KV_SEGMENT
    cdef size_t stride = <size_t>(r1 - r0) * moe_attn_partial_floats(<size_t>m.n_lora)
    cdef moe_attn a
    for i in range(r1 - r0):
        rows[i] = p.latent_rows + (r0 + i) * latent_row(m)
        n_kv[i] = <int32_t>(p.n_past + t0 + (r0 + i) // m.n_head + 1)
        sinks[i] = m.sinks[(r0 + i) % m.n_head] if m.sinks != NULL else 0
    memset(&a, 0, sizeof(a))
    a.head_dim_k = <size_t>latent_row(m)
    a.head_dim_v = <size_t>m.n_lora
    a.n_q = <size_t>(r1 - r0)
    a.q = <const float *const *>rows
    a.out = rows
    a.n_kv = n_kv
    a.k = p.kv[KV_WHOLE].at + m.kv_offset * MOE_KV_TILE
    a.k_tile_stride = <size_t>p.kv[KV_WHOLE].stride
    a.scale = m.scale
    a.sink = sinks if m.sinks != NULL else NULL
    a.scratch = p.thread_scratch + <size_t>ith * p.thread_scratch_bytes
    if part == PART_ALL:
        p.isa.attention(&a)
    elif part == PART_F16:
        p.isa.attention_f16(&a)
    elif part == PART_SEGMENT:
        p.isa.attention_segment(&a, <size_t>segment, partials + <size_t>segment * stride)
    else:        # rows of one token see the same keys
        p.isa.attention_merge(&a, <size_t>((n_kv[0] + MOE_KV_SEGMENT - 1) // MOE_KV_SEGMENT), partials, stride)


cdef int64_t rows_a_unit(Pass *p, int64_t n_rows, int64_t n_times) noexcept nogil:
    """Query rows a unit where n_rows are to be shared out n_times: many, as each unit reads all its keys once, but enough
    units for the team. No result depends on it."""
    cdef int64_t n = Q_ROWS, wanted = UNITS_A_THREAD * team_size(p.team)
    while n > LEAST_Q_ROWS and (n_rows + n - 1) // n * n_times < wanted:
        n //= 2
    return n


cdef void attend_rows(const Latent *m, Pass *p, int64_t t0, int64_t n_rows, int ith) noexcept nogil:
    """Units are blocks of rows, those of the first positions apart from the others; later ones see more keys and come
    first. Ends with a barrier."""
    cdef int64_t n_short = min(n_rows, max(<int64_t>0, MOE_F16_POSITIONS - p.n_past - t0) * m.n_head)
    cdef int64_t n = rows_a_unit(p, n_rows, 1), unit, b, r0
    cdef int64_t n_short_blocks = (n_short + n - 1) // n, n_blocks = n_short_blocks + (n_rows - n_short + n - 1) // n
    while True:
        unit = team_claim(p.team, n_blocks)
        if unit < 0:
            break
        if cancelled(p):
            continue
        b = n_blocks - 1 - unit
        if b < n_short_blocks:
            attend(m, p, t0, b * n, min(n_short, (b + 1) * n), ith, PART_F16, 0, NULL)
        else:
            r0 = n_short + (b - n_short_blocks) * n
            attend(m, p, t0, r0, min(n_rows, r0 + n), ith, PART_ALL, 0, NULL)
    team_barrier(p.team)


cdef void attend_split(const Latent *m, Pass *p, int64_t T, int ith) noexcept nogil:
    """The first T tokens, few, over many keys: units are (token, block of heads, segment of keys), merged afterwards."""
    cdef int64_t H = m.n_head, S = (p.n_past + p.n_tokens + MOE_KV_SEGMENT - 1) // MOE_KV_SEGMENT
    cdef int64_t n = rows_a_unit(p, H, T * S), B = (H + n - 1) // n, unit, s, t, r0, r1
    cdef size_t floats = <size_t>S * moe_attn_partial_floats(<size_t>m.n_lora)       # of a row
    while True:
        unit = team_claim(p.team, T * B * S)
        if unit < 0:
            break
        s, t = unit % S, unit // S // B
        r0 = t * H + unit // S % B * n
        r1 = min((t + 1) * H, r0 + n)
        if s * MOE_KV_SEGMENT <= p.n_past + t and not cancelled(p):
            attend(m, p, 0, r0, r1, ith, PART_SEGMENT, s, p.partials + <size_t>r0 * floats)
    team_barrier(p.team)
    while True:
        unit = team_claim(p.team, T * B)
        if unit < 0:
            break
        r0 = unit // B * H + unit % B * n
        r1 = min((unit // B + 1) * H, r0 + n)
        if not cancelled(p):
            attend(m, p, 0, r0, r1, ith, PART_MERGE, 0, p.partials + <size_t>r0 * floats)
    team_barrier(p.team)


cdef void attend_gathered(const Latent *m, Pass *p, const ChosenRoom *r, int64_t row, int64_t n, int64_t b, int64_t pos,
                          int ith) noexcept nogil:
    """Attention of the n rows from `row` on, heads of the token at `pos`, whose keys were gathered as number b; in place."""
    cdef float *rows[Q_ROWS]
    cdef float sinks[Q_ROWS]
    cdef int32_t n_kv[Q_ROWS]
    cdef int64_t i
    cdef moe_attn a
    for i in range(n):
        rows[i] = p.latent_rows + (row + i) * latent_row(m)
        n_kv[i] = <int32_t>m.chosen.index.top_k
        sinks[i] = m.sinks[(row + i) % m.n_head] if m.sinks != NULL else 0
    memset(&a, 0, sizeof(a))
    a.head_dim_k = <size_t>latent_row(m)
    a.head_dim_v = <size_t>m.n_lora
    a.n_q = <size_t>n
    a.q = <const float *const *>rows
    a.out = rows
    a.n_kv = n_kv
    a.k = r.tiles + b * r.n_tiles * MOE_KV_TILE * latent_row(m)
    a.k_tile_stride = <size_t>(MOE_KV_TILE * latent_row(m))
    a.scale = m.scale
    a.sink = sinks if m.sinks != NULL else NULL
    a.scratch = p.thread_scratch + <size_t>ith * p.thread_scratch_bytes
    if pos < MOE_F16_POSITIONS:
        p.isa.attention_f16(&a)
    else:
        p.isa.attention(&a)


cdef void attend_chosen(const Latent *m, Pass *p, const ChosenRoom *r, int64_t t0, int64_t first, int64_t n_tokens, int ith,
                        int nth) noexcept nogil:
    """Tokens t0 + first <= t < t0 + n_tokens, which see chosen keys: as many at once as there are threads, fewer share the heads
    of a token. Ends with a barrier."""
    cdef int64_t b0 = first, n, unit, b, h, H = m.n_head, n_parts, n_heads
    while b0 < n_tokens:
        n = min(<int64_t>nth, n_tokens - b0)
        while True:
            unit = team_claim(p.team, n * r.n_tiles)
            if unit < 0:
                break
            if not cancelled(p):
                gather_tile(&m.chosen, p, r, t0 + b0 + unit // r.n_tiles, unit // r.n_tiles, unit % r.n_tiles,
                            p.kv[KV_WHOLE].at + m.kv_offset * MOE_KV_TILE, latent_row(m))
        team_barrier(p.team)
        n_parts = max((nth + n - 1) // n, (H + Q_ROWS - 1) // Q_ROWS)
        n_heads = (H + n_parts - 1) // n_parts
        while True:
            unit = team_claim(p.team, n * n_parts)
            if unit < 0:
                break
            b, h = unit // n_parts, unit % n_parts * n_heads
            if h < H and not cancelled(p):
                attend_gathered(m, p, r, (b0 + b) * H + h, min(n_heads, H - h), b, p.n_past + t0 + b0 + b, ith)
        team_barrier(p.team)
        b0 += n


cdef void attend_latents(const Latent *m, Pass *p, int64_t t0, int64_t n, int ith, int nth) noexcept nogil:
    cdef int64_t dense = n_dense(&m.chosen, p.n_past + t0, n)
    cdef ChosenRoom room
    if dense > 0:
        if p.n_tokens <= SPLIT_TOKENS and p.n_past + p.n_tokens > MOE_KV_SEGMENT:
            attend_split(m, p, dense, ith)
        else:
            attend_rows(m, p, t0, dense * m.n_head, ith)
    if dense < n:
        lay_out(&m.chosen, p.n_ctx, p.n_tokens, nth, latent_row(m), p.extra, &room)
        attend_chosen(m, p, &room, t0, dense, n, ith, nth)
