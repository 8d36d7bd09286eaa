from libc.stdint cimport int64_t

from moeengine.graph.block cimport Linear, Pass, Residual, StreamNorm
from moeengine.graph.temperature cimport Temperature

cdef enum:
    Q_ROWS = 128        # query rows (token x head) of one unit of work
    SPLIT_TOKENS = 4    # up to so many tokens the keys are split over the team

cdef enum AttentionGate:
    GATE_NONE
    GATE_IN_Q           # every head of q has a gate for each value of its result behind it
    GATE_VALUES         # a matrix of its own, a gate a value of the result
    GATE_HEADS          # a matrix of its own, a gate a head

cdef struct Attention:
    int64_t n_embd, n_head, n_head_kv, head_dim_k, head_dim_v, n_rot
    int64_t rope_at             # floats a token in the tables of angles before this layer's
    int neox
    float eps, scale, softcap   # of the scores; softcap 0: none
    float clamp                 # bound of queries, keys and values as their matrices give them; 0: none
    Residual residual
    float q_scale               # of the queries, before the scores are taken
    Temperature temperature     # the same by position
    StreamNorm norm
    Linear qkv[4]               # queries, keys, values unless they are the keys', a gate of its own
    int n_qkv
    Linear wo
    const float *q_norm         # per head (Dk,), whole row (H*Dk,) or NULL
    const float *k_norm
    int norm_whole_row
    int norm_after_rope
    bint norm_values            # values are normed a head, without a weight
    bint values_are_keys        # there is no matrix of values: they are what the one of keys gives
    int64_t window              # a query sees so many keys, its own included; 0: all before it
    bint chunked                # a query sees those of its own `window` positions, counted from 0, up to its own
    const float *sinks          # (H,) or NULL
    int64_t kv_offset           # of this layer in its part of the cache, in elements per position
    int kv                      # the part: KV_WHOLE or KV_WINDOW
    unsigned formats            # activation formats that q, k and v need
    AttentionGate gate
    bint softplus_gate          # of a matrix of its own

cdef void attend_heads(const Attention *a, Pass *p, int ith) noexcept nogil
