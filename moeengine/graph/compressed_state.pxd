"""What the parts of attention through compressed keys share: the state of its block, and where a token's keys lie."""
from libc.stdint cimport int64_t, uint16_t

from moeengine.graph.block cimport Linear, Pass
from moeengine.graph.compressor cimport Compressor
from moeengine.graph.indexer cimport Indexer
from moeengine.kernels.table cimport MOE_X_COUNT

cdef enum:
    MAX_GROUPS_ = 64
    MAX_FIRST = 7            # products of the normed rows


cdef struct CompressedAttention:
    int64_t n_embd, n_head, dim, n_rot, rank, n_groups, o_rank, window, ratio
    float eps, scale
    const float *attn_norm      # (E,)
    const float *q_a_norm       # (rank,)
    const float *kv_norm        # (dim,)
    const float *sinks          # (H,)
    Linear first[MAX_FIRST]     # q_a, kv; values and scores of attention's keys; of the indexer's; its weights
    int64_t first_at[MAX_FIRST] # where their results lie in Pass.wide, floats a token
    int n_first
    Linear q_b
    Linear o_a[MAX_GROUPS_]     # (o_rank, dim * heads of a group)
    Linear o_b
    unsigned formats            # activation formats of the normed rows
    unsigned q_formats          # of the low-rank queries
    int table                   # of angles, see HyperStartBlock
    int64_t window_offset       # in Pass.recurrent, floats
    Compressor keys             # where ratio > 0
    Indexer index               # where ratio is 4
    int64_t halves_at           # in Pass.wide, floats a token: F16 keys of the chunk
    int64_t low_at[MOE_X_COUNT] # low-rank queries, by format
    int64_t heads_at            # results of the heads, quantized; the next three too are used after the indexer's
    int64_t parts_at            # results of o_a, group after group
    int64_t row_at              # the same token after token
    int64_t rows_at             # quantized


cdef inline int64_t most_compressed(const CompressedAttention *a, int64_t n_pos) noexcept nogil:
    """Compressed keys that a token sees of n_pos positions."""
    cdef int64_t n = n_pos // a.ratio if a.ratio else 0
    return min(n, a.index.top_k) if a.ratio == 4 else n


cdef inline const float *angles(const CompressedAttention *a, const Pass *p, int64_t t, int back) noexcept nogil:
    return p.rope + ((a.table * 2 + back) * p.n_tokens + t) * a.n_rot


cdef inline const uint16_t *window_key(const CompressedAttention *a, const Pass *p, int64_t pos) noexcept nogil:
    if pos >= p.n_past:
        return <const uint16_t *>(p.wide + a.halves_at * p.n_tokens) + (pos - p.n_past) * a.dim
    return <const uint16_t *>(p.recurrent + a.window_offset) + pos % a.window * a.dim
