"""Attention to the last positions one by one and to all before them through compressed keys; queries and results of low rank.

There is one KV head, and a value is its key. A token sees the keys of the window, then those compressed keys whose
positions have all been, or the best of them where an indexer chooses (ratio 4). They are gathered for each token, in one
order, so no cut of a prompt shows in the result. The result is rotated back, goes through a product a group of heads, and
through one for all.

Pass.recurrent holds the window's keys, F16 and a row at position modulo window, and what the compressors keep.
"""
from libc.math cimport sqrtf
from libc.stdint cimport int64_t, uint8_t, uint16_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from moeengine.graph.block cimport Block, Linear, Pass, cancelled, linear, norm_rows
from moeengine.graph.compressed_attend cimport Room, attend_all, lay_out
from moeengine.graph.compressed_state cimport MAX_FIRST, MAX_GROUPS_, CompressedAttention, angles, window_key
from moeengine.graph.compressor cimport Compressor, compressor_init, keep_token, make_key, n_keys, place_scores
from moeengine.graph.indexer cimport Indexer, finish_queries
from moeengine.graph.weights cimport Vector, Weight
from moeengine.kernels.table cimport MOE_X_COUNT, checked_isa, moe_x_row_bytes
from moeengine.kernels.threads cimport team_barrier, team_claim

cdef enum:
    UNIT_HEADS = 16          # of queries that are finished together
MAX_GROUPS = MAX_GROUPS_


# -- from normed rows to queries, keys and compressed keys --------------------------------------------


cdef void finish_low(const CompressedAttention *a, Pass *p, int64_t t) noexcept nogil:
    """Norms of the low-rank query and of the key of token t, the key's rotation, places of the compressors' scores."""
    cdef int64_t T = p.n_tokens, h
    cdef float *q = p.wide + a.first_at[0] * T + t * a.rank
    cdef float *k = p.wide + a.first_at[1] * T + t * a.dim
    cdef float *weights
    cdef int f
    p.isa.rms_norm(<size_t>a.rank, q, a.q_a_norm, a.eps, q)
    for f in range(MOE_X_COUNT):
        if a.q_formats >> f & 1:
            p.isa.x[f].quantize_row(<size_t>a.rank, q, <uint8_t *>(p.wide + a.low_at[f] * T)
                                    + <size_t>t * moe_x_row_bytes(p.isa, f, <size_t>a.rank))
    p.isa.rms_norm(<size_t>a.dim, k, a.kv_norm, a.eps, k)
    p.isa.rope(<size_t>a.n_rot, angles(a, p, t, 0), 0, k + a.dim - a.n_rot)
    p.isa.f32_to_f16(<size_t>a.dim, k, <uint16_t *>(p.wide + a.halves_at * T) + t * a.dim)
    if a.ratio:
        place_scores(&a.keys, p, t)
    if a.ratio == 4:
        place_scores(&a.index.keys, p, t)
        weights = p.wide + a.index.weights_at * T + t * a.index.n_head
        for h in range(a.index.n_head):
            weights[h] = weights[h] * a.index.scale


cdef void finish_rows(const CompressedAttention *a, Pass *p) noexcept nogil:
    cdef int64_t t
    while True:
        t = team_claim(p.team, p.n_tokens)
        if t < 0:
            break
        finish_low(a, p, t)
    team_barrier(p.team)


cdef void widen_queries(const CompressedAttention *a, Pass *p) noexcept nogil:
    """p.q (T, H, dim), and the indexer's queries, of the low-rank ones. Ends with a barrier."""
    cdef Linear w[2]
    cdef const uint8_t *x[2]
    cdef size_t stride[2]
    cdef float *out[2]
    cdef int i, f, n = 2 if a.ratio == 4 else 1
    w[0], w[1] = a.q_b, a.index.q_b
    out[0], out[1] = p.q, p.wide + a.index.q_at * p.n_tokens
    for i in range(n):
        f = w[i].type.x_format
        x[i] = <const uint8_t *>(p.wide + a.low_at[f] * p.n_tokens)
        stride[i] = moe_x_row_bytes(p.isa, f, <size_t>a.rank)
    linear(p, w, n, x, stride, out, p.n_tokens)


cdef void finish_heads(const CompressedAttention *a, Pass *p, int64_t t, int64_t h0) noexcept nogil:
    cdef int64_t h
    cdef float *q
    for h in range(h0, min(h0 + UNIT_HEADS, a.n_head)):
        q = p.q + (t * a.n_head + h) * a.dim
        p.isa.rms_norm(<size_t>a.dim, q, NULL, a.eps, q)
        p.isa.rope(<size_t>a.n_rot, angles(a, p, t, 0), 0, q + a.dim - a.n_rot)


cdef void finish_queries_and_keys(const CompressedAttention *a, Pass *p, uint8_t *scratch) noexcept nogil:
    """Units: the compressed keys that the chunk completes, then queries. Ends with a barrier."""
    cdef int64_t T = p.n_tokens, n_heads = (a.n_head + UNIT_HEADS - 1) // UNIT_HEADS, n_made = 0, first = 0, unit
    cdef int64_t n_kinds = 2 if a.ratio == 4 else 1, n_index = T if a.ratio == 4 else 0
    if a.ratio:
        first = n_keys(&a.keys, p.n_past)
        n_made = (n_keys(&a.keys, p.n_past + T) - first) * n_kinds
    while True:
        unit = team_claim(p.team, n_made + n_index + T * n_heads)
        if unit < 0:
            break
        if cancelled(p):
            continue
        if unit < n_made:
            make_key(&a.keys if unit % n_kinds == 0 else &a.index.keys, p, first + unit // n_kinds, <float *>scratch)
            continue
        unit -= n_made
        if unit < n_index:
            finish_queries(&a.index, p, unit, angles(a, p, unit, 0))
            continue
        unit -= n_index
        finish_heads(a, p, unit // n_heads, unit % n_heads * UNIT_HEADS)
    team_barrier(p.team)


# -- output, and what is kept -------------------------------------------------------------------------


cdef void keep(const CompressedAttention *a, Pass *p, int64_t t) noexcept nogil:
    """What later chunks need of token t."""
    cdef int64_t left = p.n_tokens - t, pos = p.n_past + t
    if left <= a.window:
        memcpy(<uint16_t *>(p.recurrent + a.window_offset) + pos % a.window * a.dim, window_key(a, p, pos),
               <size_t>a.dim * sizeof(uint16_t))
    if a.ratio and left <= a.keys.n_rows:
        keep_token(&a.keys, p, t)
        if a.ratio == 4:
            keep_token(&a.index.keys, p, t)


cdef void quantize_and_keep(const CompressedAttention *a, Pass *p) noexcept nogil:
    """Results of every group of heads as rows for o_a. Ends with a barrier."""
    cdef int64_t t, g, n = a.o_a[0].n_in
    cdef int f = a.o_a[0].type.x_format
    cdef size_t row_bytes = moe_x_row_bytes(p.isa, f, <size_t>n)
    cdef uint8_t *rows = <uint8_t *>(p.wide + a.heads_at * p.n_tokens)
    while True:
        t = team_claim(p.team, p.n_tokens)
        if t < 0:
            break
        for g in range(a.n_groups):
            p.isa.x[f].quantize_row(<size_t>n, p.attn + (t * a.n_groups + g) * n, rows + <size_t>(t * a.n_groups + g) * row_bytes)
        keep(a, p, t)
    team_barrier(p.team)


cdef void project(const CompressedAttention *a, Pass *p) noexcept nogil:
    """p.out (T, E) = o_b of what o_a makes of every group of heads. Ends with a barrier."""
    cdef int64_t T = p.n_tokens, t, g, n = a.n_groups * a.o_rank
    cdef const uint8_t *x[MAX_GROUPS_]
    cdef size_t stride[MAX_GROUPS_]
    cdef float *out[MAX_GROUPS_]
    cdef int f = a.o_a[0].type.x_format
    cdef size_t row_bytes = moe_x_row_bytes(p.isa, f, <size_t>a.o_a[0].n_in)
    cdef float *row
    for g in range(a.n_groups):
        x[g] = <const uint8_t *>(p.wide + a.heads_at * T) + <size_t>g * row_bytes
        stride[g] = <size_t>a.n_groups * row_bytes
        out[g] = p.wide + a.parts_at * T + g * T * a.o_rank
    linear(p, a.o_a, <int>a.n_groups, x, stride, out, T)
    f = a.o_b.type.x_format
    row_bytes = moe_x_row_bytes(p.isa, f, <size_t>n)
    while True:
        t = team_claim(p.team, T)
        if t < 0:
            break
        row = p.wide + a.row_at * T + t * n
        for g in range(a.n_groups):
            memcpy(row + g * a.o_rank, p.wide + a.parts_at * T + (g * T + t) * a.o_rank, <size_t>a.o_rank * sizeof(float))
        p.isa.x[f].quantize_row(<size_t>n, row, <uint8_t *>(p.wide + a.rows_at * T) + <size_t>t * row_bytes)
    team_barrier(p.team)
    x[0] = <const uint8_t *>(p.wide + a.rows_at * T)
    stride[0] = row_bytes
    out[0] = p.out
    linear(p, &a.o_b, 1, x, stride, out, T)


cdef void attention_run(void *state, Pass *p, int ith, int nth) noexcept nogil:
    cdef const CompressedAttention *a = <const CompressedAttention *>state
    cdef const uint8_t *x[MAX_FIRST]
    cdef size_t stride[MAX_FIRST]
    cdef float *out[MAX_FIRST]
    cdef Room room
    cdef int i, f
    lay_out(a, p.n_ctx, nth, p.extra, &room)
    norm_rows(p, a.attn_norm, a.eps, a.formats, a.n_embd)
    for i in range(a.n_first):
        f = a.first[i].type.x_format
        x[i] = p.xq[f]
        stride[i] = moe_x_row_bytes(p.isa, f, <size_t>a.n_embd)
        out[i] = p.wide + a.first_at[i] * p.n_tokens
    linear(p, a.first, a.n_first, x, stride, out, p.n_tokens)
    finish_rows(a, p)
    widen_queries(a, p)
    finish_queries_and_keys(a, p, room.thread + <size_t>ith * room.thread_bytes)
    attend_all(a, p, &room, ith, nth)
    quantize_and_keep(a, p)
    project(a, p)


cdef class CompressedAttentionBlock(Block):
    """p.out = attention(norm(x)), for a HyperJoinBlock; x stays.

    Parameters
    ----------
    shape : loader.compressed_kv.CompressedShape
    attn_norm : Vector (E,)
    q_a, q_b : Weight              (rank, E), (H * dim, rank); q_a_norm : Vector (rank,) between them
    kv : Weight (dim, E)           keys, which are values too; kv_norm : Vector (dim,)
    sinks : Vector (H,)
    o_a : Weight                   (groups * o_rank, dim * H / groups), group after group
    o_b : Weight                   (E, groups * o_rank)
    keys : (Weight, Weight, Vector, Vector) or None     of the compressor: values and scores (n, E), places (ratio, n), norm
    index_keys : the same of the indexer, or None
    index_proj, index_q : Weight or None    (heads, E), (heads * indexer_dim, rank)
    top_k : int                    compressed keys that a token attends to
    table, rope : int, RopeConfig  angles of positions (see HyperStartBlock), and of compressed keys
    state_offset, kv_offset : int  of all earlier layers: floats in Pass.recurrent, elements a position in the cache
    """
    cdef readonly int64_t n_wide   # floats a token of Pass.wide

    def __init__(self, *, shape, Vector attn_norm, Weight q_a, Vector q_a_norm, Weight q_b, Weight kv, Vector kv_norm,
                 Vector sinks, Weight o_a, Weight o_b, int n_head, int n_groups, int n_rot, float eps, keys=None,
                 index_keys=None, index_proj=None, index_q=None, int top_k=0, int table, rope, int64_t state_offset,
                 int64_t kv_offset):
        cdef CompressedAttention *a = <CompressedAttention *>calloc(1, sizeof(CompressedAttention))
        if a == NULL:
            raise MemoryError
        self.state = a
        self.run = attention_run
        self.keep = [attn_norm, q_a, q_a_norm, q_b, kv, kv_norm, sinks, o_a, o_b, keys, index_keys, index_proj, index_q]
        a.n_embd, a.n_head, a.dim, a.n_rot, a.rank = q_a.linear.n_in, n_head, shape.dim, n_rot, q_a.linear.n_rows
        a.n_groups, a.o_rank, a.window, a.ratio = n_groups, o_a.linear.n_rows // n_groups, shape.window, shape.ratio
        a.eps, a.scale, a.table, a.window_offset = eps, <float>1 / sqrtf(<float>shape.dim), table, state_offset
        a.attn_norm, a.q_a_norm, a.kv_norm, a.sinks = attn_norm.data, q_a_norm.data, kv_norm.data, sinks.data
        a.q_b, a.o_b = q_b.linear, o_b.linear
        for g in range(n_groups):
            a.o_a[g] = (<Weight?>o_a.rows(g * a.o_rank, a.o_rank)).linear
        a.q_formats = 1u << a.q_b.type.x_format
        self._first(q_a)
        self._first(kv)
        a.halves_at = self._room((shape.dim + 1) // 2)
        state_offset += shape.n_window
        if keys:
            self._compressor(&a.keys, shape, shape.dim, keys, n_rot, rope, eps, False, state_offset, kv_offset)
            state_offset += 2 * shape.n_rows * shape.n_columns(shape.dim)
        if index_keys:
            self._compressor(&a.index.keys, shape, shape.indexer_dim, index_keys, n_rot, rope, eps, True, state_offset,
                             kv_offset + shape.kv_elements[0])
            self._indexer(&a.index, index_proj, index_q, shape.indexer_dim, top_k)
        for f in range(MOE_X_COUNT):
            if a.q_formats >> f & 1:
                a.low_at[f] = self._room(row_floats(f, a.rank))
        self._shared_room(index_keys is not None)

    cdef int64_t _room(self, int64_t n):
        """Place for n floats a token in Pass.wide."""
        cdef int64_t at = self.n_wide
        self.n_wide += (n + 15) // 16 * 16
        return at

    cdef int64_t _first(self, Weight w):
        """One more product of the normed rows; where its result will lie."""
        cdef CompressedAttention *a = <CompressedAttention *>self.state
        cdef int i = a.n_first
        a.first[i], a.first_at[i] = w.linear, self._room(w.linear.n_rows)
        a.formats |= 1u << w.linear.type.x_format
        a.n_first += 1
        return a.first_at[i]

    cdef _compressor(self, Compressor *c, shape, int dim, keys, int n_rot, rope, float eps, bint hadamard, int64_t state_offset,
                     int64_t cache_offset):
        compressor_init(c, shape, dim, keys[2], keys[3], n_rot, rope, eps, hadamard)
        c.state_offset, c.cache_offset, c.elements = state_offset, cache_offset, -(-dim // shape.ratio)
        c.values_at, c.scores_at = self._first(keys[0]), self._first(keys[1])

    cdef _indexer(self, Indexer *x, Weight proj, Weight q_b, int dim, int top_k):
        cdef CompressedAttention *a = <CompressedAttention *>self.state
        x.n_head, x.top_k, x.proj, x.q_b = proj.linear.n_rows, top_k, proj.linear, q_b.linear
        x.rot_at = dim - x.keys.n_rot
        x.scale = <float>1 / sqrtf(<float>(dim * x.n_head))
        x.row_bytes = moe_x_row_bytes(checked_isa(), checked_isa().types[0].x_format, <size_t>dim)
        x.weights_at = self._first(proj)
        a.q_formats |= 1u << q_b.linear.type.x_format

    cdef _shared_room(self, bint with_index):
        """The indexer's queries, and afterwards the results on their way out, take the same room."""
        cdef CompressedAttention *a = <CompressedAttention *>self.state
        cdef int64_t before = self.n_wide, n = a.n_groups * a.o_rank, most
        if with_index:
            a.index.q_at = self._room(a.index.n_head * a.index.keys.dim)
            a.index.rows_at = self._room(a.index.n_head * <int64_t>a.index.row_bytes // 4)
        most, self.n_wide = self.n_wide, before
        a.heads_at = self._room(a.n_groups * row_floats(a.o_a[0].type.x_format, a.o_a[0].n_in))
        a.parts_at, a.row_at = self._room(n), self._room(n)
        a.rows_at = self._room(row_floats(a.o_b.type.x_format, n))
        self.n_wide = max(most, self.n_wide)

    def extra_bytes(self, n_ctx, n_tokens, n_threads):
        """Bytes of Pass.extra."""
        cdef Room room
        return lay_out(<const CompressedAttention *>self.state, n_ctx, n_threads, NULL, &room)

    def __dealloc__(self):
        free(self.state)


cdef int64_t row_floats(int f, int64_t n) except? -1:
    """Floats as large as an activation row of n values in format f."""
    return <int64_t>moe_x_row_bytes(checked_isa(), f, <size_t>n) // 4
