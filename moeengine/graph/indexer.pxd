from libc.stdint cimport int32_t, int64_t, uint8_t

from moeengine.graph.block cimport Linear, Pass
from moeengine.graph.compressor cimport Compressor

# Which compressed keys a token attends to, where there are more than it may; indexer.pyx.
cdef enum:
    INDEX_KEYS = 64          # keys of a unit of work

cdef struct Indexer:
    int64_t n_head, top_k
    Compressor keys
    Linear proj              # (n_head, E): weights of the heads
    Linear q_b               # (n_head * dim, rank)
    float scale              # of the weights
    int64_t rot_at           # of a head's values, the first that is rotated
    bint neox                # see AttentionBlock
    int64_t weights_at       # in Pass.wide, floats a token: (T, n_head)
    int64_t q_at             # (T, n_head, dim)
    int64_t rows_at          # (T, n_head) rows as products take them
    size_t row_bytes

# Bytes of scratch that score_keys needs.
cdef size_t score_scratch(const Indexer *x) noexcept nogil
# Rotates, turns and stores the queries of token t.
cdef void finish_queries(const Indexer *x, Pass *p, int64_t t, const float *cs) noexcept nogil
# scores (n, stride): of the keys from k0 on, at most INDEX_KEYS, that tokens t0 <= t < t0 + n see
cdef void score_keys(const Indexer *x, Pass *p, int64_t t0, int64_t n, int64_t k0, float *scores, int64_t stride,
                     uint8_t *scratch) noexcept nogil
# ids (k,): the k < n keys with the largest scores, ascending; of equal scores the first
cdef void choose_keys(const float *scores, int64_t n, int64_t k, int32_t *ids) noexcept nogil
