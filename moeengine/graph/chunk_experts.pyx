"""The second experts of GroveMoE: several routed experts share one, which reads the sum of the routed ones.

Follows a MoeBlock: its choice and probabilities still stand in the pass, and its sum in Pass.out. All second experts are
weights like any other to the supply, as a fraction of the routed ones and used far more often.
"""
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from moeengine.graph.block cimport Block, Pass, add_residual, quantize_rows, residual_init
from moeengine.graph.expert_groups cimport tier_run
from moeengine.graph.expert_tiers cimport TierWeights, tier_init
from moeengine.graph.moe_state cimport GATE, UP, MoeState
from moeengine.graph.router cimport MIN_WEIGHT_SUM
from moeengine.kernels.table cimport MOE_X_COUNT
from moeengine.kernels.threads cimport team_barrier, team_claim

from moeengine.graph.moe_ffn import GROUP_PAIRS


cdef struct ChunkExperts:
    MoeState moe                # only what tier_run and the residual need
    int64_t n_routed            # routed experts
    int64_t n_sharing           # routed experts of one second expert


cdef void choose_chunks(const ChunkExperts *s, Pass *p) noexcept nogil:
    """From the routed choice to that of second experts, each with the probability of the routed expert of its own number,
    all divided by their sum. Clears p.out. Ends with a barrier."""
    cdef int64_t t, j, A = s.moe.route.n_expert_used, n = min(A, s.n_routed // s.n_sharing), E = s.moe.n_embd
    cdef int32_t *ids
    cdef float *weights
    cdef double total
    while True:
        t = team_claim(p.team, p.n_tokens)
        if t < 0:
            break
        ids, weights, total = p.route_ids + t * A, p.route_weights + t * A, 0
        for j in range(A):
            ids[j] = ids[j] // <int32_t>s.n_sharing if j < n and ids[j] >= 0 else -1
            weights[j] = p.route_probs[t * s.n_routed + ids[j]] if ids[j] >= 0 else 0
            total += weights[j]
        for j in range(A):
            weights[j] = weights[j] / max(<float>total, MIN_WEIGHT_SUM) * s.moe.route.scale
        memset(p.out + t * E, 0, <size_t>E * sizeof(float))
    team_barrier(p.team)


cdef void chunk_experts_run(void *state, Pass *p, int ith, int nth) noexcept nogil:
    cdef const ChunkExperts *s = <const ChunkExperts *>state
    cdef int64_t E = s.moe.n_embd
    cdef int f
    for f in range(MOE_X_COUNT):
        if s.moe.formats >> f & 1:
            quantize_rows(p, p.out, p.n_tokens, E, <size_t>E, f, p.xq[f])
    choose_chunks(s, p)
    tier_run(&s.moe, &s.moe.tiers[0], p, ith)
    add_residual(p, E, &s.moe.residual)


cdef class ChunkExpertsBlock(Block):
    """x += scale * second experts of (sum of routed experts).

    Parameters
    ----------
    il : int                  layer
    tier : TierWeights        the second experts
    n_routed : int            routed experts, a multiple of those that share one
    n_expert_used : int       A, of routed experts
    weights_scale : float     factor of the weights
    scale : float             of what is added to x
    """

    def __init__(self, *, int il, TierWeights tier, int n_routed, int n_expert_used, float weights_scale, float scale):
        cdef ChunkExperts *s = <ChunkExperts *>calloc(1, sizeof(ChunkExperts))
        if s == NULL:
            raise MemoryError
        self.state = s
        self.run = chunk_experts_run
        self.keep = [tier]
        s.n_routed, s.n_sharing = n_routed, n_routed // tier.n_expert
        s.moe.il, s.moe.group_pairs, s.moe.n_tiers = il, GROUP_PAIRS, 1
        s.moe.route.n_expert, s.moe.route.n_expert_used, s.moe.route.scale = tier.n_expert, n_expert_used, weights_scale
        residual_init(&s.moe.residual, scale, None, 0, 1)
        tier_init(&s.moe.tiers[0], tier)
        s.moe.n_embd = s.moe.tiers[0].bank[GATE].one.n_in
        for i in (GATE, UP):
            s.moe.formats |= 1u << s.moe.tiers[0].bank[i].one.type.x_format

    def __dealloc__(self):
        free(self.state)
