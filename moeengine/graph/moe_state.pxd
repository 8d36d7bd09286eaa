"""What the parts of a mixture of experts share: banks, tiers, and the state of its block."""
from libc.stdint cimport int32_t, int64_t
from libc.string cimport memcpy

from moeengine.graph.activation cimport GatedActivation
from moeengine.graph.block cimport Linear, Residual, StreamNorm
from moeengine.graph.ffn cimport DenseFfn
from moeengine.graph.router cimport RouterConfig
from moeengine.kernels.mul_mat_id cimport ExpertHooks
from moeengine.supply.base cimport TierHooks

cdef enum:
    MAX_TIERS = 4
    MAX_AHEAD = 4
    GATE = 0
    UP = 1
    DOWN = 2

cdef struct Bank:
    # One expert tensor: `one` describes expert 0, the others follow `stride` bytes apart.
    Linear one
    int64_t stride
    const float *scale      # (n_expert,) or NULL
    const float *bias       # (n_expert, rows) or NULL
    ExpertHooks hooks

cdef struct Tier:
    int32_t first           # global id of its expert 0
    int32_t n_expert
    Bank bank[3]            # GATE (no rows where there is none), UP, DOWN
    TierHooks supply

cdef struct MoeState:
    int il
    int i_moe               # index among the MoE layers
    int64_t n_embd
    StreamNorm norm
    float eps               # of the other norms
    Residual residual
    unsigned formats        # of the experts' rows, and of the router's and the shared expert's where they are the same
    const float *router_norm        # of the router's own rows, or NULL
    const float *shared_norm        # the same of the shared expert
    unsigned shared_formats
    const float *expert_post_norm   # of the sum of experts before the shared one is added, or NULL
    const float *shared_post_norm
    Linear router[2]        # router; gate of the shared expert
    int n_router
    bint router_is_early    # its logits were made of the residual stream before attention; see early_router.pyx
    RouterConfig route
    int n_tiers
    Tier tiers[MAX_TIERS]
    bint weigh_inputs       # weights are factors of what an expert reads, not of its result
    bint has_shared
    float shared_scale      # of routed and shared experts together
    DenseFfn shared
    GatedActivation activation      # of the routed experts
    const int32_t *by_token # NULL, or the experts of every token of the vocabulary, by_token_stride ids apart
    int64_t by_token_stride
    int64_t group_pairs
    const MoeState *ahead[MAX_AHEAD]    # layers whose choice is guessed while this one runs
    int n_ahead
    float drop_below        # LOSSY: share of an even weight under which a cold expert is left out; 0: none is
    int64_t n_dropped
    int64_t n_used[MAX_TIERS]           # experts and pairs of the last pass
    int64_t n_pairs[MAX_TIERS]


cdef inline void token_experts(const MoeState *s, int32_t token, int32_t *ids) noexcept nogil:
    """ids (A,): the experts that the layer's table gives a token."""
    memcpy(ids, s.by_token + token * s.by_token_stride, <size_t>s.route.n_expert_used * sizeof(int32_t))
