"""Compressed keys: one of every few positions, which attention to far positions sees in the place of theirs.

Every position has values and scores; a key is, element by element, the sum of some positions' values weighted by the
softmax of their scores, normed and rotated by the first of its own positions. With overlap (ratio 4) a position has two of
each: the first take part in the key after its own, the second in its own.

What positions before a chunk had is kept in Pass.recurrent, at position modulo n_rows. A key is made as soon as its last
position is known, from the same numbers wherever a prompt was cut. No key changes later, so a timeline that is cut
shorter only forgets its last ones.
"""
from libc.math cimport INFINITY, sqrtf
from libc.stdint cimport int64_t, uint16_t
from libc.string cimport memcpy

from moeengine.graph.block cimport KV_WHOLE, KvTiles, Pass
from moeengine.graph.embed_head cimport rope_init, rope_row
from moeengine.graph.weights cimport Vector
from moeengine.kernels.table cimport MOE_KV_TILE

cdef enum:
    LEAST_HADAMARD = 64
    MAX_ROWS = 128           # n_rows is at most this


cdef void compressor_init(Compressor *c, shape, int dim, Vector ape, Vector norm, int n_rot, rope, float eps, bint hadamard):
    """shape : loader.compressed_kv.CompressedShape; offsets are left to the caller."""
    c.ratio, c.dim, c.n_cols, c.n_rows = shape.ratio, dim, shape.n_columns(dim), shape.n_rows
    c.n_rot, c.eps, c.hadamard = n_rot, eps, hadamard
    c.ape, c.norm = ape.data, norm.data
    rope_init(&c.rope, rope)


cdef int64_t hadamard_block(int64_t dim) noexcept nogil:
    """The size of the matrix: the largest power of two, 64 or more, that divides dim; 0: none does."""
    cdef int64_t n = LEAST_HADAMARD
    if dim % n:
        return 0
    while dim % (2 * n) == 0:
        n *= 2
    return n


cdef void hadamard_rows(int64_t dim, int64_t block, float *x) noexcept nogil:
    """x (dim,) times the orthonormal Walsh-Hadamard matrix of `block` rows, block after block."""
    cdef int64_t i, j, n = 1
    cdef float a, b, scale = <float>1 / sqrtf(<float>block)
    for i in range(dim):
        x[i] = x[i] * scale
    while n < block:
        i = 0
        while i < dim:
            for j in range(i, i + n):
                a, b = x[j], x[j + n]
                x[j], x[j + n] = a + b, a - b
            i += 2 * n
        n *= 2


cdef inline float *chunk_values(const Compressor *c, Pass *p) noexcept nogil:
    return p.wide + c.values_at * p.n_tokens


cdef inline float *chunk_scores(const Compressor *c, Pass *p) noexcept nogil:
    return p.wide + c.scores_at * p.n_tokens


cdef void place_scores(const Compressor *c, Pass *p, int64_t t) noexcept nogil:
    cdef float *row = chunk_scores(c, p) + t * c.n_cols
    p.isa.add(<size_t>c.n_cols, row, c.ape + (p.n_past + t) % c.ratio * c.n_cols, row)


cdef void rows_of(const Compressor *c, Pass *p, int64_t pos, const float **values, const float **scores) noexcept nogil:
    """Values and scores (n_cols,) of a position: of the chunk, or kept."""
    cdef const float *kept = p.recurrent + c.state_offset
    if pos >= p.n_past:
        values[0] = chunk_values(c, p) + (pos - p.n_past) * c.n_cols
        scores[0] = chunk_scores(c, p) + (pos - p.n_past) * c.n_cols
    else:
        values[0] = kept + pos % c.n_rows * c.n_cols
        scores[0] = kept + (c.n_rows + pos % c.n_rows) * c.n_cols


cdef void make_key(const Compressor *c, Pass *p, int64_t i, float *scratch) noexcept nogil:
    cdef int64_t D = c.dim, N = c.n_rows, first = (i + 1) * c.ratio - N, r, d, col
    cdef const float *values[MAX_ROWS]
    cdef const float *scores[MAX_ROWS]
    cdef float[MAX_ROWS] weights
    cdef float *y = scratch
    cdef float *cs = scratch + D + 16 - D % 16
    cdef double total
    for r in range(N):
        col = D if first + r >= i * c.ratio and c.n_cols > D else 0
        values[r] = NULL             # before the beginning: of no weight
        if first + r >= 0:
            rows_of(c, p, first + r, &values[r], &scores[r])
            values[r] += col
            scores[r] += col
    for d in range(D):
        for r in range(N):
            weights[r] = scores[r][d] if values[r] != NULL else -INFINITY
        p.isa.softmax(<size_t>N, weights)
        total = 0
        for r in range(N):
            if values[r] != NULL:
                total += values[r][d] * weights[r]
        y[d] = <float>total
    p.isa.rms_norm(<size_t>D, y, c.norm, c.eps, y)
    rope_row(&c.rope, NULL, i * c.ratio, cs)
    p.isa.rope(<size_t>c.n_rot, cs, 0, y + D - c.n_rot)
    if c.hadamard:
        hadamard_rows(D, hadamard_block(D), y)
    store_key(c, p, i, y, <uint16_t *>cs)


cdef inline uint16_t *part_of(const Compressor *c, const Pass *p, int64_t i, int64_t h) noexcept nogil:
    """Part h of key i in the cache: keys of up to a tile's positions have one part, longer ones one a tile."""
    cdef int64_t pos = i * c.ratio + h * MOE_KV_TILE
    cdef const KvTiles *kv = &p.kv[KV_WHOLE]
    return kv.at + pos // MOE_KV_TILE * kv.stride + c.cache_offset * MOE_KV_TILE + pos % MOE_KV_TILE * c.elements


cdef void store_key(const Compressor *c, Pass *p, int64_t i, const float *y, uint16_t *halves) noexcept nogil:
    cdef int64_t n = min(c.ratio, <int64_t>MOE_KV_TILE) * c.elements, at = 0, h = 0
    p.isa.f32_to_f16(<size_t>c.dim, y, halves)
    while at < c.dim:
        memcpy(part_of(c, p, i, h), halves + at, <size_t>min(n, c.dim - at) * sizeof(uint16_t))
        at += n
        h += 1


cdef void copy_key(const Compressor *c, const Pass *p, int64_t i, uint16_t *to) noexcept nogil:
    cdef int64_t n = min(c.ratio, <int64_t>MOE_KV_TILE) * c.elements, at = 0, h = 0
    while at < c.dim:
        memcpy(to + at, part_of(c, p, i, h), <size_t>min(n, c.dim - at) * sizeof(uint16_t))
        at += n
        h += 1


cdef void keep_token(const Compressor *c, Pass *p, int64_t t) noexcept nogil:
    cdef float *kept = p.recurrent + c.state_offset
    cdef int64_t row = (p.n_past + t) % c.n_rows
    memcpy(kept + row * c.n_cols, chunk_values(c, p) + t * c.n_cols, <size_t>c.n_cols * sizeof(float))
    memcpy(kept + (c.n_rows + row) * c.n_cols, chunk_scores(c, p) + t * c.n_cols, <size_t>c.n_cols * sizeof(float))
