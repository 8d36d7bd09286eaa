"""What every block of a forward pass shares: the pass, a weight matrix, and the call of a block.

A block is run by all threads of the team at once. It splits its work with `team_claim` and ends with
a barrier, so that the next block finds the result. It never allocates: scratch was laid out when the
Context was made.
"""
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t

from moeengine.kernels.mul_mat_id cimport ExpertPlan
from moeengine.kernels.table cimport MOE_X_COUNT, moe_isa, moe_type
from moeengine.kernels.threads cimport moe_team

cdef enum:
    ROW_CHUNK = 64         # most weight rows a unit of work
    ONE_X_ROW_CHUNK = 1024 # the same for one activation row: short stretches of memory are read slowly
    LEAST_ROW_CHUNK = 16   # the kernels' panel; chunks are multiples of it
    UNITS_A_THREAD = 4     # wanted at least, so that threads finish together
    X_CHUNK_BYTES = 524288 # activation rows of one unit stay within a core's cache
    X_CHUNK_ROWS = 512     # and are never more than this
    # scratch of a thread has room for X_CHUNK_ROWS * ROW_CHUNK results, which is more than ONE_X_ROW_CHUNK

ctypedef enum pass_error:
    PASS_OK = 0
    PASS_NAN_ROUTER = 1    # detail: layer
    PASS_NAN_EXPERT = 2    # detail: layer, expert
    PASS_SUPPLY = 3        # detail: layer, expert; the supply keeps the reason

cdef struct KvTiles:
    # Keys and values of some layers: tiles of MOE_KV_TILE positions. Tile i of the timeline has place i % n.
    uint16_t *at
    int64_t stride             # elements between two tiles: those of all these layers
    int64_t n

cdef enum:
    KV_WHOLE = 0               # every position is kept
    KV_WINDOW = 1              # the last ones, of layers with a sliding window
    N_KV

cdef struct Pass:
    const moe_isa *isa
    moe_team *team
    int64_t n_tokens           # T, tokens in this chunk
    int64_t n_past             # tokens already in the KV cache
    int64_t n_ctx              # positions the context has
    const int32_t *tokens      # (T,)
    float *x                   # (T, E) residual stream
    float *kept                # (T, E) as it was at a KeepBlock
    float *norm                # (T, E) normed input of the current block, float32
    uint8_t *xq[MOE_X_COUNT]   # per format: (T, row) quantized input of the current block
    float *q                   # (T, H*Dk) queries
    float *k                   # (T, K*Dk)
    float *v                   # (T, K*Dv)
    float *attn                # (T, H*Dv) attention result; the same memory as q where Dv == Dk
    uint8_t *aq                # (T, row) quantized attention result
    float *wide                # queries with their gates, or heads of a delta net and their gates
    float *latent_rows         # (latent_tokens, H, latent with its rotated part) absorbed queries, then results; mla.pyx
    uint8_t *latent_xq         # (latent_tokens, H, row) quantized parts of them
    int64_t latent_tokens      # of a pass that go through latent attention together
    float *streams             # (T, S, E) residual streams that hyper-connections mix
    float *mixes               # (T, (2 + S) * S) how the hyper-connection around the current block mixes them
    uint8_t *extra             # scratch that some blocks lay out themselves (Sizes.extra)
    float *recurrent           # state of the recurrent layers of the timeline, as of n_past tokens
    float *hidden              # FFN hidden rows
    uint8_t *hq                # quantized hidden rows
    uint8_t *gx                # gathered activation rows of one group of experts
    float *out                 # (T, E) result of an FFN before it is added to x
    float *rope                # (T, n_rot) cos, sin pairs; several such tables where layers rotate differently
    float *route_probs         # (T, X)
    int32_t *route_ids         # (T, A)
    float *route_weights       # (T, A)
    float *shared_gate         # (T,) gate of the shared expert
    ExpertPlan plan            # scratch for min(T*A, X) experts and T*A pairs
    int32_t *visit             # order in which a group's experts are computed, for as many as the plan
    float *guess_norm          # (E,) scratch of one token's look at later routers, as the next four
    uint8_t *guess_xq
    float *guess_probs         # (X,)
    int32_t *guess_ids         # (A,)
    float *guess_weights       # (A,)
    int32_t *trace             # NULL, or (n_moe_layers, T, A): every layer leaves its ids here
    uint8_t *thread_scratch    # per thread, thread_scratch_bytes apart
    size_t thread_scratch_bytes
    float *partials            # attention: results of segments of the keys, for SPLIT_TOKENS tokens
    KvTiles kv[N_KV]           # KV cache of the timeline, see kv_cache.pyx
    int output                 # enum pass_output
    float *logits              # (n_out, V)
    const int *cancel          # not 0: skip the arithmetic, keep the barriers
    int error                  # enum pass_error; the first one wins
    int error_layer
    int error_expert

cdef enum pass_output:
    OUTPUT_NONE = 0
    OUTPUT_LAST = 1
    OUTPUT_ALL = 2

ctypedef void (*block_fn)(void *state, Pass *p, int ith, int nth) noexcept nogil

cdef struct Linear:
    # y = scale * (W x) + bias, or with bias_first scale * (W x + bias)
    const moe_type *type
    const uint8_t *w           # n_rows rows, row_bytes apart
    int64_t n_in
    int64_t n_rows
    size_t row_bytes
    const float *bias          # n_rows or NULL
    float scale
    bint bias_first

cdef struct StreamNorm:
    # How a block reads the stream: (x - mean, where centred) / root mean square * weight + bias
    const float *weight        # (E,)
    const float *bias          # (E,) or NULL
    float eps
    bint centred
    bint of_kept               # reads Pass.kept instead of Pass.x

cdef struct Residual:
    # How a block's result joins the stream: x = after * (x + scale * norm(out))
    float scale
    float after
    const float *norm          # (E,) or NULL
    float eps

cdef class Block:
    """One step of the forward pass. Holds pointers resolved at load; `run` is called by every thread."""
    cdef block_fn run
    cdef void *state
    cdef list keep             # Python owners of the memory that the pointers lead to

cdef void linear_chunk(const moe_isa *isa, const Linear *w, int64_t r0, int64_t r1,
                       int64_t n_x, const uint8_t *x, size_t x_stride,
                       float *out, size_t out_stride, const uint8_t *next_w) noexcept nogil
cdef void linear(Pass *p, const Linear *w, int n_w, const uint8_t **x, const size_t *x_stride,
                 float **out, int64_t n_x) noexcept nogil
cdef int64_t row_chunk(const Pass *p, int64_t n_rows, int64_t n_x) noexcept nogil
cdef int64_t even_chunk(int64_t n_rows, int64_t chunk) noexcept nogil
cdef int64_t x_chunk(size_t x_stride, int64_t n_x) noexcept nogil
cdef void norm_rows(Pass *p, const float *w, float eps, unsigned formats, int64_t n_embd) noexcept nogil
cdef void read_stream(Pass *p, const StreamNorm *norm, unsigned formats, int64_t n_embd) noexcept nogil
cdef void stream_norm_row(const moe_isa *isa, const StreamNorm *norm, int64_t n_embd, const float *x, float *y) noexcept nogil
cdef int stream_norm_init(StreamNorm *n, weight, bias, float eps, bint centred=*, bint of_kept=*) except -1
cdef void quantize_rows(Pass *p, const float *x, int64_t n_x, int64_t n, size_t x_stride,
                        int x_format, uint8_t *out) noexcept nogil
cdef void add_residual(Pass *p, int64_t n_embd, const Residual *r) noexcept nogil
cdef void residual_row(Pass *p, int64_t t, int64_t n_embd, const Residual *r) noexcept nogil
cdef int residual_init(Residual *r, float scale, norm, float eps, float after) except -1
cdef void pass_fail(Pass *p, int error, int layer, int expert) noexcept nogil
cdef inline bint cancelled(const Pass *p) noexcept nogil:
    return (<const volatile int *>p.cancel)[0] != 0
