"""The choice among positions in latent attention: small heads score every position before a token, and it attends to the best.

The indexer's keys are not compressed, one a position in the cache beside the latents; how they score is in indexer.pyx. A
token that sees no more positions than it may has no choice and takes the way of all latent attention. A layer without an
indexer of its own takes what the layer before chose: ids stay in Pass.extra.

The keys of the chosen are gathered for each token, in the order of their positions, so no cut of a prompt shows.
"""
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t

from moeengine.graph.block cimport KV_WHOLE, Pass, cancelled
from moeengine.graph.compressor cimport hadamard_block, hadamard_rows
from moeengine.graph.indexer cimport INDEX_KEYS, choose_keys, finish_queries, score_keys, score_scratch
from moeengine.kernels.region cimport take
from moeengine.kernels.table cimport MOE_KV_TILE
from moeengine.kernels.threads cimport team_barrier, team_claim


cdef size_t lay_out(const ChosenKeys *c, int64_t n_ctx, int64_t n_tokens, int64_t n_threads, int64_t row, uint8_t *base,
                    ChosenRoom *r) noexcept nogil:
    cdef size_t at = 0, B = <size_t>n_threads
    r.n_chosen = c.index.top_k
    r.n_tiles = (r.n_chosen + MOE_KV_TILE - 1) // MOE_KV_TILE
    r.n_scores = n_ctx + INDEX_KEYS
    if not c.on or n_ctx <= c.index.top_k:
        return 0
    r.ids = <int32_t *>take(base, &at, <size_t>(n_tokens * r.n_chosen) * sizeof(int32_t))
    r.scores = <float *>take(base, &at, B * <size_t>r.n_scores * sizeof(float))
    r.tiles = <uint16_t *>take(base, &at, B * <size_t>(r.n_tiles * MOE_KV_TILE * row) * sizeof(uint16_t))
    r.thread_bytes = (score_scratch(&c.index) + 63) & ~<size_t>63 if c.has_index else 0
    r.thread = take(base, &at, B * r.thread_bytes)
    return at


cdef void finish_key(const ChosenKeys *c, Pass *p, int64_t t) noexcept nogil:
    cdef int64_t h, D = c.index.keys.dim, H = c.index.n_head, pos = p.n_past + t
    cdef float *k = p.wide + c.k_at * p.n_tokens + t * D
    cdef float *weights = p.wide + c.index.weights_at * p.n_tokens + t * H
    p.isa.layer_norm(<size_t>D, k, c.k_norm, c.eps, k)
    p.isa.add(<size_t>D, k, c.k_bias, k)
    p.isa.rope(<size_t>c.index.keys.n_rot, p.rope + t * c.index.keys.n_rot, c.index.neox, k + c.index.rot_at)
    if c.index.keys.hadamard:
        hadamard_rows(D, hadamard_block(D), k)
    p.isa.f32_to_f16(<size_t>D, k, p.kv[KV_WHOLE].at + pos // MOE_KV_TILE * p.kv[KV_WHOLE].stride
                     + c.index.keys.cache_offset * MOE_KV_TILE + pos % MOE_KV_TILE * D)
    for h in range(H):
        weights[h] = weights[h] * c.index.scale


cdef void choose_positions(const ChosenKeys *c, Pass *p, const ChosenRoom *r, int ith, int nth) noexcept nogil:
    cdef int64_t first = n_dense(c, p.n_past, p.n_tokens), unit, t, n, n_keys
    cdef uint8_t *scratch = r.thread + <size_t>ith * r.thread_bytes
    while True:
        unit = team_claim(p.team, p.n_tokens - first)
        if unit < 0:
            break
        finish_queries(&c.index, p, first + unit, p.rope + (first + unit) * c.index.keys.n_rot)
    team_barrier(p.team)
    t = first
    while t < p.n_tokens:
        n = min(<int64_t>nth, p.n_tokens - t)
        n_keys = p.n_past + t + n
        while True:
            unit = team_claim(p.team, (n_keys + INDEX_KEYS - 1) // INDEX_KEYS)
            if unit < 0:
                break
            if not cancelled(p):
                score_keys(&c.index, p, t, n, unit * INDEX_KEYS, r.scores, r.n_scores, scratch)
        team_barrier(p.team)
        while True:
            unit = team_claim(p.team, n)
            if unit < 0:
                break
            choose_keys(r.scores + unit * r.n_scores, p.n_past + t + unit + 1, r.n_chosen, r.ids + (t + unit) * r.n_chosen)
        team_barrier(p.team)
        t += n


cdef void gather_tile(const ChosenKeys *c, const Pass *p, const ChosenRoom *r, int64_t t, int64_t b, int64_t tile,
                      const uint16_t *keys, int64_t row) noexcept nogil:
    cdef const uint16_t *from_[MOE_KV_TILE]
    cdef const int32_t *ids = r.ids + t * r.n_chosen + tile * MOE_KV_TILE
    cdef uint16_t *to = r.tiles + (b * r.n_tiles + tile) * MOE_KV_TILE * row
    cdef int64_t j, d, n = min(r.n_chosen - tile * MOE_KV_TILE, <int64_t>MOE_KV_TILE)
    for j in range(n):
        from_[j] = keys + ids[j] // MOE_KV_TILE * p.kv[KV_WHOLE].stride + ids[j] % MOE_KV_TILE
    for d in range(row):
        for j in range(n):
            to[d * MOE_KV_TILE + j] = from_[j][d * MOE_KV_TILE]
