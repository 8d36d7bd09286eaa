from libc.stdint cimport int32_t, int64_t

from moeengine.kernels.table cimport moe_isa

cdef enum Gating:
    GATING_SOFTMAX        # softmax over all logits, then top-k
    GATING_SIGMOID        # sigmoid of every logit, then top-k
    GATING_SOFTMAX_TOPK   # top-k of the logits, then softmax over the chosen
    GATING_SIGMOID_TOPK   # top-k of the logits, then sigmoid of the chosen
    GATING_SQRT_SOFTPLUS  # sqrt(log(1 + e^logit)) of every logit, then top-k

cdef enum:
    MAX_GROUPS = 64

# Smallest positive normal F16: the sum of the chosen weights is not divided by less.
cdef float MIN_WEIGHT_SUM

cdef struct RouterConfig:
    int64_t n_expert          # X
    int64_t n_expert_used     # A
    int gating
    bint norm_topk            # divide the chosen weights by their sum
    int64_t n_group           # expert groups, at most MAX_GROUPS; 1 = none
    int64_t n_group_used      # groups that experts are chosen from, by the sum of their two best scores
    float scale               # factor after normalising; 1 = none
    const float *select_bias  # (X,) added for the choice only, or NULL
    bint ids_given            # the experts stand in ids already; only their weights are computed

# logits (X,) -> ids (A,), weights (A,); logits are overwritten. Returns 0 where a logit is NaN or
# infinite: then ids are 0 .. A-1 and weights 0.
cdef bint route_token(const moe_isa *isa, const RouterConfig *r, float *logits,
                      int32_t *ids, float *weights) noexcept nogil
