from libc.stdint cimport int64_t, uint16_t

from moeengine.graph.block cimport Pass
from moeengine.graph.embed_head cimport Rope
from moeengine.graph.weights cimport Vector

# One kind of compressed keys of one layer; compressor.pyx says how they are made.
cdef struct Compressor:
    int64_t ratio           # positions of one key
    int64_t dim             # of a key
    int64_t n_cols          # values a position: dim, or with overlap 2 dim
    int64_t n_rows          # positions that a key is made of: ratio, or with overlap 2 ratio
    int64_t n_rot           # last values of a key that are rotated
    bint hadamard           # keys are turned by a Walsh-Hadamard matrix
    float eps
    const float *ape        # (ratio, n_cols)
    const float *norm       # (dim,)
    Rope rope
    int64_t state_offset    # in Pass.recurrent, floats: values, then scores, (n_rows, n_cols) each
    int64_t cache_offset    # of this layer in the cache, in elements per position
    int64_t elements        # of this layer in the cache, per position
    int64_t values_at       # in Pass.wide, floats a token: (T, n_cols) of the chunk
    int64_t scores_at

cdef void compressor_init(Compressor *c, shape, int dim, Vector ape, Vector norm, int n_rot, rope, float eps, bint hadamard)
cdef inline int64_t n_keys(const Compressor *c, int64_t n_pos) noexcept nogil:
    """Keys that positions below n_pos make."""
    return n_pos // c.ratio
# Floats of scratch that make_key needs.
cdef inline int64_t key_scratch(const Compressor *c) noexcept nogil:
    return 2 * (c.dim + 16) + c.n_rot
# scores of token t += those of its place among `ratio`
cdef void place_scores(const Compressor *c, Pass *p, int64_t t) noexcept nogil
# Key i, of positions i * ratio and on, into the cache. Its last position is one of the chunk.
cdef void make_key(const Compressor *c, Pass *p, int64_t i, float *scratch) noexcept nogil
# Keeps what later keys need of token t of the chunk; asked for the last n_rows tokens, after all keys were made.
cdef void keep_token(const Compressor *c, Pass *p, int64_t t) noexcept nogil
# F16 values of key i (dim,)
cdef void copy_key(const Compressor *c, const Pass *p, int64_t i, uint16_t *to) noexcept nogil
cdef void hadamard_rows(int64_t dim, int64_t block, float *x) noexcept nogil
cdef int64_t hadamard_block(int64_t dim) noexcept nogil
