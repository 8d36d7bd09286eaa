from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t

from moeengine.graph.block cimport Linear, Pass
from moeengine.graph.indexer cimport Indexer

# Which positions the tokens of a layer attend to, where they see more than they may; chosen_keys.pyx.
cdef struct ChosenKeys:
    bint on                  # else a token sees all positions
    bint has_index           # else those that the layer before this one chose
    Indexer index            # top_k always; its keys are those of every position
    float eps
    const float *k_norm      # (dim,)
    const float *k_bias      # (dim,)
    int64_t k_at             # in Pass.wide, floats a token: keys of the chunk
    int64_t low_at           # low-rank queries in the format of index.q_b, where attention's have another; else -1

# Where things lie in Pass.extra; ids outlive a layer.
cdef struct ChosenRoom:
    int32_t *ids             # (T, n_chosen), ascending
    float *scores            # (n_threads, n_scores)
    uint16_t *tiles          # (n_threads, n_tiles) tiles of gathered keys
    uint8_t *thread          # thread_bytes each
    int64_t n_chosen, n_scores, n_tiles
    size_t thread_bytes

# Bytes that `r` takes from `base` on. row: elements of a key of attention
cdef size_t lay_out(const ChosenKeys *c, int64_t n_ctx, int64_t n_tokens, int64_t n_threads, int64_t row, uint8_t *base,
                    ChosenRoom *r) noexcept nogil
# How many of the n tokens from position pos on see all positions: the first ones.
cdef inline int64_t n_dense(const ChosenKeys *c, int64_t pos, int64_t n) noexcept nogil:
    return max(<int64_t>0, min(n, c.index.top_k - pos)) if c.on else n
# Norm, rotation and place in the cache of the key of token t, and the scale of its heads' weights.
cdef void finish_key(const ChosenKeys *c, Pass *p, int64_t t) noexcept nogil
# r.ids of all tokens that see more than they may, once index.q_b has made the queries. Ends with a barrier.
cdef void choose_positions(const ChosenKeys *c, Pass *p, const ChosenRoom *r, int ith, int nth) noexcept nogil
# One tile of the keys that token t sees, as number b of those in r.tiles; keys: the first element of this layer's in the cache
cdef void gather_tile(const ChosenKeys *c, const Pass *p, const ChosenRoom *r, int64_t t, int64_t b, int64_t tile,
                      const uint16_t *keys, int64_t row) noexcept nogil
