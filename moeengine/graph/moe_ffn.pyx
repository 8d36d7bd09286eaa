"""The mixture of experts: norm, router, routed experts over one or more banks, shared expert.

The routed experts are computed by expert_groups.pyx, tier by tier; the weighted sum of a token is taken in ascending
order of expert, whatever the number of threads, tokens or the supply.
"""
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from moeengine.graph.block cimport (
    Block, Pass, PASS_NAN_ROUTER, cancelled, linear, norm_rows, pass_fail, read_stream, residual_init, residual_row,
    stream_norm_init,
)
from moeengine.graph.expert_groups cimport tier_run
from moeengine.graph.expert_hints cimport drop_cold
from moeengine.graph.expert_tiers cimport BankWeights, TierWeights, tier_init
from moeengine.graph.ffn cimport dense_ffn, dense_ffn_init
from moeengine.graph.moe_state cimport (
    GATE, MAX_AHEAD, UP, MoeState, token_experts,
)
from moeengine.graph.router cimport route_token
from moeengine.graph.weights cimport IdTable, Vector, Weight, values_of
from moeengine.kernels.mul_mat_id cimport ExpertHooks
from moeengine.kernels.table cimport moe_x_row_bytes
from moeengine.kernels.threads cimport team_barrier, team_claim
from moeengine.supply.base cimport ExpertSupply, TierHooks

from moeengine.graph.ffn import ACTIVATIONS
from moeengine.graph.router import GATINGS
from moeengine.supply.base import BankAt, LayerAt, TierAt

# Pairs (token, slot) whose hidden rows are held at once; one expert alone may exceed it.
GROUP_PAIRS = 256

cdef enum:
    DROP_TOKENS = 8         # larger passes use most experts anyway

cdef extern from "math.h" nogil:
    float expf(float)


cdef void route_tokens(const MoeState *s, Pass *p) noexcept nogil:
    """Logits to ids and weights; clears p.out. Ends with a barrier."""
    cdef int64_t t, A = s.route.n_expert_used
    while True:
        t = team_claim(p.team, p.n_tokens)
        if t < 0:
            break
        memset(p.out + t * s.n_embd, 0, <size_t>s.n_embd * sizeof(float))
        if s.by_token != NULL:
            token_experts(s, p.tokens[t], p.route_ids + t * A)
        if not route_token(p.isa, &s.route, p.route_probs + t * s.route.n_expert,
                           p.route_ids + t * A, p.route_weights + t * A):
            if not cancelled(p):
                pass_fail(p, PASS_NAN_ROUTER, s.il, -1)
    team_barrier(p.team)


cdef void add_shared(const MoeState *s, Pass *p, int64_t t) noexcept nogil:
    """p.out += what p.norm holds of the shared expert, for token t: gated, or normed; the sum is scaled."""
    cdef int64_t E = s.n_embd
    cdef float *shared = p.norm + t * E
    cdef float gate = <float>1 / (<float>1 + expf(-p.shared_gate[t])) if s.n_router == 2 else 1
    if s.shared_post_norm != NULL:
        p.isa.rms_norm(<size_t>E, shared, s.shared_post_norm, s.eps, shared)
    p.isa.scale(<size_t>E, gate, shared, shared)
    p.isa.add(<size_t>E, p.out + t * E, shared, p.out + t * E)
    if s.shared_scale != 1:
        p.isa.scale(<size_t>E, s.shared_scale, p.out + t * E, p.out + t * E)


cdef void moe_run(void *state, Pass *p, int ith, int nth) noexcept nogil:
    cdef const MoeState *s = <const MoeState *>state
    cdef int64_t t, r, E = s.n_embd, A = s.route.n_expert_used
    cdef const uint8_t *x[2]
    cdef size_t stride[2]
    cdef float *out[2]
    cdef int i
    if s.router_norm != NULL:
        norm_rows(p, s.router_norm, s.eps, 1u << s.router[0].type.x_format, E)
    else:
        read_stream(p, &s.norm, s.formats, E)
    for i in range(s.n_router):
        x[i] = p.xq[s.router[i].type.x_format]
        stride[i] = moe_x_row_bytes(p.isa, s.router[i].type.x_format, <size_t>E)
    out[0] = p.route_probs
    out[1] = p.shared_gate
    i = 1 if s.router_is_early else 0
    if i < s.n_router:
        linear(p, s.router + i, s.n_router - i, x + i, stride + i, out + i, p.n_tokens)
    route_tokens(s, p)
    if s.router_norm != NULL:
        read_stream(p, &s.norm, s.formats, E)
    if ith == 0 and p.trace != NULL:
        memcpy(p.trace + s.i_moe * p.n_tokens * A, p.route_ids, <size_t>(p.n_tokens * A) * sizeof(int32_t))
    if ith == 0 and s.drop_below > 0 and p.n_tokens <= DROP_TOKENS:
        drop_cold(<MoeState *>state, p)
    for i in range(s.n_tiers):
        if i > 0:
            team_barrier(p.team)     # all have left the plan of the tier before
        tier_run(s, &s.tiers[i], p, ith)
    if s.has_shared:
        if s.shared_norm != NULL:
            norm_rows(p, s.shared_norm, s.eps, s.shared_formats, E)
        dense_ffn(p, &s.shared, p.norm)
    while True:
        t = team_claim(p.team, p.n_tokens)
        if t < 0:
            break
        if s.expert_post_norm != NULL:
            p.isa.rms_norm(<size_t>E, p.out + t * E, s.expert_post_norm, s.eps, p.out + t * E)
        if s.has_shared:
            add_shared(s, p, t)
        residual_row(p, t, E, &s.residual)
    team_barrier(p.team)


cdef class MoeBlock(Block):
    """x = after * (x + residual_scale * post_norm(routed experts (+ shared expert) of norm(x))).

    Parameters
    ----------
    il, i_moe : int               layer; its index among the MoE layers
    ffn_norm : Vector (E,)
    norm_bias : Vector (E,) or None
    router : Weight (X, E)
    tiers : list of TierWeights   one or more, first id ascending, together X experts
    n_expert_used : int           A
    gating, norm_topk, weights_scale, select_bias, n_group, n_group_used      see graph.router.route
    shared : (gate, up, down) Weights or None; gate as for FfnBlock
    shared_gate : Weight (1, E) or None
    activation, bound, shared_activation, shared_bound    of routed and shared experts; see ffn.ACTIVATIONS and activation.pxd
    router_norm, shared_norm : Vector (E,) or None    the router, or the shared expert, reads norms of x of its own;
                                  the router's only without shared_gate
    expert_post_norm, shared_post_norm, post_norm : Vector (E,) or None    norms of the experts' sum, of the shared expert,
                                  and of both together
    by_token : IdTable (V, A) or None    experts of each token, in the place of a choice
    shared_scale : float          of routed and shared experts together
    centred, of_kept : bool       see StreamNorm
    router_is_early : bool        its logits are in Pass.route_probs already
    weigh_inputs : bool           weights are factors of what an expert reads, not of its result
    """
    cdef readonly object tiers
    cdef readonly int il

    def __init__(self, *, int il, int i_moe, Vector ffn_norm, Weight router, list tiers,
                 int n_expert_used, str gating="softmax", bint norm_topk=True, float weights_scale=1.0,
                 select_bias=None, int n_group=1, int n_group_used=1, shared=None, shared_gate=None,
                 float residual_scale=1.0, norm_bias=None, str activation="silu", float bound=0,
                 str shared_activation="silu", float shared_bound=0, by_token=None, router_norm=None, shared_norm=None,
                 expert_post_norm=None, shared_post_norm=None, post_norm=None, float after=1.0,
                 bint router_is_early=False, bint weigh_inputs=False, float shared_scale=1.0,
                 bint centred=False, bint of_kept=False, float eps):
        cdef MoeState *s = <MoeState *>calloc(1, sizeof(MoeState))
        if s == NULL:
            raise MemoryError
        self.state = s
        self.run = moe_run
        self.keep = [ffn_norm, norm_bias, router, tiers, select_bias, shared, shared_gate, by_token, router_norm, shared_norm,
                     expert_post_norm, shared_post_norm, post_norm]
        self.tiers, self.il = tuple(tiers), il
        s.il, s.i_moe, s.n_embd, s.eps = il, i_moe, router.linear.n_in, eps
        residual_init(&s.residual, residual_scale, post_norm, eps, after)
        stream_norm_init(&s.norm, ffn_norm, norm_bias, eps, centred, of_kept)
        s.router_norm, s.shared_norm = values_of(router_norm), values_of(shared_norm)
        s.expert_post_norm, s.shared_post_norm = values_of(expert_post_norm), values_of(shared_post_norm)
        s.group_pairs, s.activation.kind, s.activation.bound = GROUP_PAIRS, ACTIVATIONS[activation], bound
        if by_token is not None:
            s.by_token, s.by_token_stride = (<IdTable?>by_token).data, (<IdTable>by_token).n_cols
            s.route.ids_given = True
        s.router[0], s.n_router, s.router_is_early = router.linear, 1, router_is_early
        s.formats = 1u << router.linear.type.x_format if router_norm is None else 0
        if shared_gate is not None:
            s.router[1], s.n_router = (<Weight?>shared_gate).linear, 2
            s.formats |= 1u << s.router[1].type.x_format
        s.route.n_expert, s.route.n_expert_used = router.linear.n_rows, n_expert_used
        s.route.gating, s.route.norm_topk = GATINGS[gating], norm_topk
        s.route.scale, s.route.n_group, s.route.n_group_used = weights_scale, n_group, n_group_used
        s.route.select_bias = (<Vector?>select_bias).data if select_bias is not None else NULL
        s.n_tiers, s.weigh_inputs = len(tiers), weigh_inputs
        for i, tier in enumerate(tiers):
            tier_init(&s.tiers[i], tier)
            s.formats |= 1u << s.tiers[i].bank[GATE].one.type.x_format
            s.formats |= 1u << s.tiers[i].bank[UP].one.type.x_format
        if shared is not None:
            s.has_shared, s.shared_scale = True, shared_scale
            dense_ffn_init(&s.shared, shared[0], shared[1], shared[2], shared_activation, shared_bound)
            s.shared_formats = 1u << s.shared.gate_up[0].type.x_format | 1u << s.shared.gate_up[1].type.x_format
            if shared_norm is None:
                s.formats |= s.shared_formats

    def located(self):
        """LayerAt: where the expert tensors of this layer lie."""
        return LayerAt(self.il, tuple(
            TierAt(t.first, t.n_expert, tuple(BankAt(b.tensor, b.address) for b in t.banks)) for t in self.tiers
        ))

    def set_drop_below(self, float share):
        """LOSSY: leave out experts that would cost a read and weigh less than `share` of an even weight."""
        (<MoeState *>self.state).drop_below = share

    def forget_banks(self):
        """Let go of the experts' addresses in the mapping; the supply brings every slice."""
        cdef MoeState *s = <MoeState *>self.state
        cdef BankWeights bank
        for i in range(s.n_tiers):
            for b in range(3):
                bank = (<TierWeights?>self.tiers[i]).banks[b]
                bank.first.forget()
                s.tiers[i].bank[b].one.w = NULL

    def bank_pointers(self):
        """Address of expert 0 in every bank: list of (name, address)."""
        return [(bank.tensor.name, bank.address) for tier in self.tiers for bank in tier.banks]

    def last_use(self):
        """What the last pass used: list of (experts, (token, slot) pairs), one a tier."""
        cdef MoeState *s = <MoeState *>self.state
        return [(s.n_used[i], s.n_pairs[i]) for i in range(s.n_tiers)]

    @property
    def n_dropped(self):
        """Choices left out so far because of set_drop_below."""
        return (<MoeState *>self.state).n_dropped

    def set_ahead(self, blocks):
        """The MoeBlocks after this one whose routers are asked ahead; they live as long as this one."""
        cdef MoeState *s = <MoeState *>self.state
        s.n_ahead = min(MAX_AHEAD, len(blocks))
        for i in range(s.n_ahead):
            s.ahead[i] = <const MoeState *>(<MoeBlock?>blocks[i]).state

    def set_supply(self, ExpertSupply supply):
        """Let `supply` bring the bytes; it stays bound to this block."""
        cdef MoeState *s = <MoeState *>self.state
        cdef ExpertHooks banks[3]
        self.keep.append(supply)
        for i in range(s.n_tiers):
            memset(banks, 0, sizeof(banks))
            memset(&s.tiers[i].supply, 0, sizeof(TierHooks))
            supply.hooks(s.i_moe, i, &s.tiers[i].supply, banks)
            for b in range(3):
                s.tiers[i].bank[b].hooks = banks[b]

    def __dealloc__(self):
        free(self.state)
