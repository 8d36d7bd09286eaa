"""The mixture of experts: norm, router, routed experts over one or more banks, shared expert.

Experts are visited tier by tier and in ascending id, in groups of a few hundred (token, slot) pairs:
gather rows, gate and up and their activation, quantize, down, weighted sum. Nothing of size
tokens x experts is kept beyond one group. The weighted sum of a token is taken in ascending order of
expert, whatever the number of threads, tokens or the supply.
"""
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

import numpy as np

from moeengine.graph.block cimport (
    Block, Linear, Pass, PASS_NAN_EXPERT, PASS_NAN_ROUTER, PASS_SUPPLY, ROW_CHUNK, biased_norm_rows, cancelled,
    even_chunk, linear, linear_chunk, pass_fail, residual_row, row_chunk, x_chunk,
)
from moeengine.graph.ffn cimport DenseFfn, dense_ffn, dense_ffn_init
from moeengine.graph.router cimport RouterConfig, route_token
from moeengine.graph.weights cimport IdTable, Vector, Weight
from moeengine.kernels.mul_mat_id cimport (
    ExpertHooks, ExpertPlan, expert_bytes, expert_bytes_now, hooks_after, hooks_before, plan_build,
)
from moeengine.kernels.table cimport moe_fetch_for_writing, moe_isa, moe_weighted, moe_x_row_bytes
from moeengine.kernels.threads cimport team_barrier, team_claim, team_size
from moeengine.supply.base cimport ExpertSupply, TierHooks

from moeengine.graph.router import GATINGS
from moeengine.supply.base import BankAt, LayerAt, TierAt

# Pairs (token, slot) whose hidden rows are held at once; one expert alone may exceed it.
GROUP_PAIRS = 256

cdef extern from "math.h" nogil:
    float expf(float)

cdef enum:
    MAX_TIERS = 4
    MAX_AHEAD = 4
    DROP_TOKENS = 8         # larger passes use most experts anyway
    GATE = 0
    UP = 1
    DOWN = 2

cdef enum Activation:
    SILU                    # silu(gate) * up
    SWIGLU_OAI              # the clamped one of gpt-oss
    SWIGLU_CLAMP            # silu(gate) * up, both bounded

ACTIVATIONS = {"silu": SILU, "swiglu_oai": SWIGLU_OAI, "swiglu_clamp": SWIGLU_CLAMP}

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
    Bank bank[3]            # GATE, UP, DOWN
    TierHooks supply

cdef struct MoeState:
    int il
    int i_moe               # index among the MoE layers
    int64_t n_embd
    const float *norm
    const float *norm_bias  # or NULL
    float eps
    float residual_scale
    unsigned formats
    Linear router[2]        # router; gate of the shared expert
    int n_router
    RouterConfig route
    int n_tiers
    Tier tiers[MAX_TIERS]
    bint has_shared
    DenseFfn shared
    Activation activation   # of the routed experts
    float bound             # of their gate and up, for SWIGLU_CLAMP
    const int32_t *by_token # NULL, or the experts of every token of the vocabulary, by_token_stride ids apart
    int64_t by_token_stride
    int64_t group_pairs
    const MoeState *ahead[MAX_AHEAD]    # layers whose choice is guessed while this one runs
    int n_ahead
    float drop_below        # LOSSY: share of an even weight under which a cold expert is left out; 0: none is
    int64_t n_dropped
    int64_t n_used[MAX_TIERS]           # experts and pairs of the last pass
    int64_t n_pairs[MAX_TIERS]

cdef struct Group:
    # Experts i0 <= i < i1 of the plan: pairs p0 <= pair < p1.
    int64_t i0, i1, p0, p1
    const int32_t *visit    # NULL, or the order of gate and up when the group is the whole plan


cdef void bank_expert(const Bank *b, const ExpertPlan *plan, int64_t i, Linear *w) noexcept nogil:
    """The matrix of the plan's i-th expert; w.w is NULL where the supply could not bring it."""
    cdef int32_t ie = plan.expert[i]
    w[0] = b.one
    w.w = <const uint8_t *>expert_bytes(&b.hooks, plan, i, <const char *>b.one.w, b.stride)
    if b.scale != NULL:
        w.scale = b.scale[ie]
    if b.bias != NULL:
        w.bias = b.bias + ie * b.one.n_rows


cdef const uint8_t *bank_row(const Bank *b, const ExpertPlan *plan, int64_t i, int64_t r) noexcept nogil:
    """Where row r of the plan's i-th expert is, if that is known without waiting, else NULL. Not to be read."""
    cdef const char *w = expert_bytes_now(&b.hooks, plan, i, <const char *>b.one.w, b.stride)
    return <const uint8_t *>w + <size_t>r * b.one.row_bytes if w != NULL else NULL


cdef bint next_group(const MoeState *s, const Tier *tier, const ExpertPlan *plan, Group *g) noexcept nogil:
    cdef int64_t most = tier.supply.max_experts
    g.i0 = g.i1
    if g.i0 >= plan.n_used:
        return False
    g.i1 = g.i0 + 1
    g.p0 = plan.start[g.i0]
    while (g.i1 < plan.n_used and plan.start[g.i1 + 1] - g.p0 <= s.group_pairs
           and (most == 0 or g.i1 - g.i0 < most)):
        g.i1 += 1
    g.p1 = plan.start[g.i1]
    return True


cdef inline void token_experts(const MoeState *s, int32_t token, int32_t *ids) noexcept nogil:
    """ids (A,): the experts that the layer's table gives a token."""
    memcpy(ids, s.by_token + token * s.by_token_stride, <size_t>s.route.n_expert_used * sizeof(int32_t))


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


cdef void gather(const MoeState *s, const Tier *tier, Pass *p, const Group *g,
                 const uint8_t **x, size_t *stride) noexcept nogil:
    """Activation rows of the group's pairs in a row, for gate and for up. Ends with a barrier."""
    cdef int i, f, same = tier.bank[GATE].one.type.x_format == tier.bank[UP].one.type.x_format
    cdef int64_t k, n = g.p1 - g.p0, A = s.route.n_expert_used
    cdef uint8_t *to = p.gx
    for i in range(2):
        f = tier.bank[i].one.type.x_format
        stride[i] = moe_x_row_bytes(p.isa, f, <size_t>s.n_embd)
        if p.n_tokens == 1:      # every pair has the one row there is
            x[i] = p.xq[f]
            stride[i] = 0
        elif i == 1 and same:
            x[i] = x[0]
        else:
            x[i] = to
            to += <size_t>n * stride[i]
    if p.n_tokens == 1:
        return
    while True:
        k = team_claim(p.team, n)
        if k < 0:
            break
        for i in range(1 if same else 2):
            memcpy(<uint8_t *>x[i] + <size_t>k * stride[i],
                   p.xq[tier.bank[i].one.type.x_format] + <size_t>(p.plan.pair[g.p0 + k] // A) * stride[i], stride[i])
    team_barrier(p.team)


cdef struct GateUnit:
    int64_t i           # expert of the plan
    int64_t r0, r1      # rows of gate and up
    int64_t t0, t1      # pairs of the group


cdef bint gate_unit(const ExpertPlan *plan, const Group *g, int64_t n_rows, int64_t n_r, int64_t n_xc, int64_t unit,
                    GateUnit *u) noexcept nogil:
    """The unit-th piece of gate and up: n_r rows, n_xc pairs of one expert. False: there are not so many."""
    cdef int64_t j, c, n_rc = (n_rows + n_r - 1) // n_r
    for j in range(g.i0, g.i1):
        u.i = g.visit[j] if g.visit != NULL else j
        c = n_rc * ((plan.start[u.i + 1] - plan.start[u.i] + n_xc - 1) // n_xc)
        if unit < c:
            u.t0 = plan.start[u.i] - g.p0 + unit // n_rc * n_xc
            u.t1 = min(u.t0 + n_xc, plan.start[u.i + 1] - g.p0)
            u.r0 = unit % n_rc * n_r
            u.r1 = min(u.r0 + n_r, n_rows)
            return True
        unit -= c
    return False


cdef void gate_up(const MoeState *s, const Tier *tier, Pass *p, const Group *g, const uint8_t **x,
                  const size_t *stride, float *tmp) noexcept nogil:
    """hidden[pair] = activation(gate x, up x) for all pairs of the group. Ends with a barrier."""
    cdef int64_t F = tier.bank[GATE].one.n_rows, ld = tier.bank[DOWN].one.n_in
    cdef int64_t n_r = even_chunk(F, row_chunk(p, F * (g.i1 - g.i0), p.n_tokens)), n_rc = (F + n_r - 1) // n_r
    cdef int64_t n_xc = x_chunk(stride[0], p.n_tokens), unit, n_units = 0, i, t, n_t
    cdef float *row
    cdef const uint8_t *next_w
    cdef Linear gate, up
    cdef GateUnit u, later
    for i in range(g.i0, g.i1):
        n_units += n_rc * ((p.plan.start[i + 1] - p.plan.start[i] + n_xc - 1) // n_xc)
    while True:
        unit = team_claim(p.team, n_units)
        if unit < 0:
            break
        if cancelled(p):
            continue
        gate_unit(&p.plan, g, F, n_r, n_xc, unit, &u)
        bank_expert(&tier.bank[GATE], &p.plan, u.i, &gate)
        bank_expert(&tier.bank[UP], &p.plan, u.i, &up)
        if gate.w == NULL or up.w == NULL:
            pass_fail(p, PASS_SUPPLY, s.il, tier.first + p.plan.expert[u.i])
            continue
        n_t = u.t1 - u.t0
        row = p.hidden + u.t0 * ld
        linear_chunk(p.isa, &gate, u.r0, u.r1, n_t, x[GATE] + <size_t>u.t0 * stride[GATE], stride[GATE],
                     row, <size_t>ld, up.w + <size_t>u.r0 * up.row_bytes)
        next_w = NULL
        if gate_unit(&p.plan, g, F, n_r, n_xc, unit + team_size(p.team), &later):     # threads take turns, as a rule
            next_w = bank_row(&tier.bank[GATE], &p.plan, later.i, later.r0)
        linear_chunk(p.isa, &up, u.r0, u.r1, n_t, x[UP] + <size_t>u.t0 * stride[UP], stride[UP],
                     tmp - u.r0, <size_t>n_r, next_w)
        for t in range(n_t):
            if s.activation == SWIGLU_OAI:
                p.isa.swiglu_oai(<size_t>(u.r1 - u.r0), row + t * ld + u.r0, tmp + t * n_r, row + t * ld + u.r0)
            elif s.activation == SWIGLU_CLAMP:
                p.isa.swiglu_clamp(<size_t>(u.r1 - u.r0), row + t * ld + u.r0, tmp + t * n_r, s.bound, row + t * ld + u.r0)
            else:
                p.isa.silu_mul(<size_t>(u.r1 - u.r0), row + t * ld + u.r0, tmp + t * n_r, row + t * ld + u.r0)
    team_barrier(p.team)


cdef void quantize_hidden(const MoeState *s, const Tier *tier, Pass *p, const Group *g) noexcept nogil:
    """Hidden rows into the format that `down` is multiplied with. Ends with a barrier."""
    cdef int64_t k, F = tier.bank[GATE].one.n_rows, n = tier.bank[DOWN].one.n_in
    cdef int f = tier.bank[DOWN].one.type.x_format
    cdef size_t stride = moe_x_row_bytes(p.isa, f, <size_t>n)
    cdef float *row
    while True:
        k = team_claim(p.team, g.p1 - g.p0)
        if k < 0:
            break
        row = p.hidden + k * n
        if n > F:
            memset(row + F, 0, <size_t>(n - F) * sizeof(float))
        p.isa.x[f].quantize_row(<size_t>n, row, p.hq + <size_t>k * stride)
    team_barrier(p.team)


cdef void fetch_out(const MoeState *s, Pass *p, int64_t k0, int64_t k1, int64_t r0, int64_t r1) noexcept nogil:
    """Brings columns r0 .. r1 of p.out near for pairs k0 .. k1: rows far apart, which the CPU does not foresee."""
    cdef int64_t k, r, A = s.route.n_expert_used
    cdef const float *row
    for k in range(k0, k1):
        row = p.out + p.plan.pair[k] // A * s.n_embd
        for r in range(r0, r1, 16):
            moe_fetch_for_writing(row + r)


cdef void down_sum(const MoeState *s, const Tier *tier, Pass *p, const Group *g, float *tmp) noexcept nogil:
    """out[token] += weight * (down hidden), experts ascending. A unit owns some rows of `down` for all
    experts of the group, which fixes the order of the sum. Ends with a barrier."""
    cdef int64_t E = s.n_embd, i, k0, k1, r0, r1, unit, n_in
    cdef int f = tier.bank[DOWN].one.type.x_format
    cdef size_t stride
    cdef moe_weighted rows
    cdef int64_t n_xc, n_r = even_chunk(E, row_chunk(p, E, p.n_tokens))
    cdef const uint8_t *next_w
    cdef Linear down
    n_in = tier.bank[DOWN].one.n_in
    stride = moe_x_row_bytes(p.isa, f, <size_t>n_in)
    n_xc = x_chunk(stride, p.n_tokens)
    rows.n_used, rows.weight = s.route.n_expert_used, p.route_weights
    rows.x, rows.x_stride, rows.y_stride = tmp, n_r, E
    while True:
        unit = team_claim(p.team, (E + n_r - 1) // n_r)
        if unit < 0:
            break
        r0 = unit * n_r
        r1 = min(r0 + n_r, E)
        for i in range(g.i0, g.i1):
            if cancelled(p):
                break
            bank_expert(&tier.bank[DOWN], &p.plan, i, &down)
            if down.w == NULL:
                pass_fail(p, PASS_SUPPLY, s.il, tier.first + p.plan.expert[i])
                break
            next_w = NULL
            if i + 1 < g.i1:
                next_w = bank_row(&tier.bank[DOWN], &p.plan, i + 1, r0)
            elif r0 + n_r * team_size(p.team) < E:
                next_w = bank_row(&tier.bank[DOWN], &p.plan, g.i0, r0 + n_r * team_size(p.team))
            k0 = p.plan.start[i]
            while k0 < p.plan.start[i + 1]:
                k1 = min(k0 + n_xc, p.plan.start[i + 1])
                fetch_out(s, p, k0, k1, r0, r1)
                linear_chunk(p.isa, &down, r0, r1, k1 - k0, p.hq + <size_t>(k0 - g.p0) * stride, stride,
                             tmp - r0, <size_t>n_r, next_w)
                rows.n, rows.n_rows, rows.pair = r1 - r0, k1 - k0, p.plan.pair + k0
                rows.y = p.out + r0
                if not p.isa.add_weighted(&rows):
                    pass_fail(p, PASS_NAN_EXPERT, s.il, tier.first + p.plan.expert[i])
                k0 = k1
    team_barrier(p.team)


cdef void tier_run(const MoeState *s, const Tier *tier, Pass *p, int ith) noexcept nogil:
    cdef Group g
    cdef int64_t i
    cdef int b
    cdef const uint8_t *x[2]
    cdef size_t stride[2]
    cdef float *tmp = <float *>(p.thread_scratch + <size_t>ith * p.thread_scratch_bytes)
    if ith == 0:
        plan_build(p.route_ids, p.n_tokens * s.route.n_expert_used, tier.first, tier.n_expert, &p.plan)
        if cancelled(p) or p.error:      # nobody wants the result: bring nothing in for it
            p.plan.n_used = 0
        (<MoeState *>s).n_used[tier - s.tiers] = p.plan.n_used
        (<MoeState *>s).n_pairs[tier - s.tiers] = p.plan.start[p.plan.n_used]
        supply_begin(s, tier, p)
        if p.n_tokens == 1 and s.n_ahead and tier == &s.tiers[s.n_tiers - 1]:
            guess_ahead(s, p)
    team_barrier(p.team)
    g.i1 = 0
    while next_group(s, tier, &p.plan, &g):
        g.visit = p.visit if tier.supply.begin != NULL and g.i0 == 0 and g.i1 == p.plan.n_used else NULL
        if ith == 0:
            for i in range(g.i0, g.i1):
                for b in range(3):
                    hooks_before(&tier.bank[b].hooks, &p.plan, i)
        gather(s, tier, p, &g, x, stride)
        gate_up(s, tier, p, &g, x, stride, tmp)
        quantize_hidden(s, tier, p, &g)
        down_sum(s, tier, p, &g, tmp)
        if ith == 0:
            for i in range(g.i0, g.i1):
                for b in range(3):
                    hooks_after(&tier.bank[b].hooks, &p.plan, i)
    if ith == 0 and tier.supply.end != NULL:
        tier.supply.end(tier.supply.arg)


cdef bint guess_experts(const MoeState *later, Pass *p) noexcept nogil:
    """p.guess_ids: what the router of a later layer would choose for the one token's state as it is now, or its table does."""
    cdef const Linear *router = &later.router[0]
    cdef int64_t r = 0
    cdef int f = router.type.x_format
    if later.by_token != NULL:
        token_experts(later, p.tokens[0], p.guess_ids)
        return True
    p.isa.rms_norm(<size_t>later.n_embd, p.x, later.norm, later.eps, p.guess_norm)
    if later.norm_bias != NULL:
        p.isa.add(<size_t>later.n_embd, p.guess_norm, later.norm_bias, p.guess_norm)
    p.isa.x[f].quantize_row(<size_t>later.n_embd, p.guess_norm, p.guess_xq)
    while r < router.n_rows:
        linear_chunk(p.isa, router, r, min(r + ROW_CHUNK, router.n_rows), 1, p.guess_xq, 0,
                     p.guess_probs, <size_t>router.n_rows, NULL)
        r += ROW_CHUNK
    return route_token(p.isa, &later.route, p.guess_probs, p.guess_ids, p.guess_weights)


cdef void guess_ahead(const MoeState *s, Pass *p) noexcept nogil:
    """Hints to the supply: what later layers would choose for the one token."""
    cdef const MoeState *later
    cdef const Tier *tier
    cdef int64_t a, n, j, A
    cdef int32_t ids[64]
    cdef int i, t
    for i in range(s.n_ahead):
        later = s.ahead[i]
        A = later.route.n_expert_used
        if later.tiers[0].supply.hint == NULL or A > 64 or not guess_experts(later, p):
            return
        for t in range(later.n_tiers):
            tier = &later.tiers[t]
            n = 0
            for a in range(A):
                if tier.first <= p.guess_ids[a] < tier.first + tier.n_expert:
                    j = n       # ascending
                    while j > 0 and ids[j - 1] > p.guess_ids[a] - tier.first:
                        ids[j] = ids[j - 1]
                        j -= 1
                    ids[j] = p.guess_ids[a] - tier.first
                    n += 1
            if n and tier.supply.hint != NULL:
                tier.supply.hint(tier.supply.arg, ids, n)


cdef void drop_cold(MoeState *s, Pass *p) noexcept nogil:
    """Takes the choices out that would cost a read and weigh little. Only where drop_below asks for it."""
    cdef int64_t t, a, A = s.route.n_expert_used
    cdef int32_t *ids
    cdef float *weights
    cdef float least
    cdef int i
    cdef const Tier *tier
    for t in range(p.n_tokens):
        ids, weights = p.route_ids + t * A, p.route_weights + t * A
        least = 0
        for a in range(A):
            least = least + weights[a]
        least = least / A * s.drop_below
        for a in range(A):
            for i in range(s.n_tiers):
                tier = &s.tiers[i]
                if (tier.first <= ids[a] < tier.first + tier.n_expert and weights[a] < least
                        and tier.supply.is_cold != NULL and tier.supply.is_cold(tier.supply.arg, ids[a] - tier.first)):
                    ids[a] = -1
                    s.n_dropped += 1
                    break


cdef void supply_begin(const MoeState *s, const Tier *tier, Pass *p) noexcept nogil:
    """Tells the supply which experts come; it may permute p.visit where one group holds them all."""
    cdef int64_t i, n = p.plan.n_used
    cdef Group g
    if tier.supply.begin == NULL:
        return
    for i in range(n):
        p.visit[i] = <int32_t>i
    g.i1 = 0
    next_group(s, tier, &p.plan, &g)
    tier.supply.begin(tier.supply.arg, &p.plan, p.n_tokens, p.visit if g.i1 == n else NULL)


cdef void moe_run(void *state, Pass *p, int ith, int nth) noexcept nogil:
    cdef const MoeState *s = <const MoeState *>state
    cdef int64_t t, r, E = s.n_embd, A = s.route.n_expert_used
    cdef const uint8_t *x[2]
    cdef size_t stride[2]
    cdef float *out[2]
    cdef float gate
    cdef int i
    biased_norm_rows(p, s.norm, s.norm_bias, s.eps, s.formats, E)
    for i in range(s.n_router):
        x[i] = p.xq[s.router[i].type.x_format]
        stride[i] = moe_x_row_bytes(p.isa, s.router[i].type.x_format, <size_t>E)
    out[0] = p.route_probs
    out[1] = p.shared_gate
    linear(p, s.router, s.n_router, x, stride, out, p.n_tokens)
    route_tokens(s, p)
    if ith == 0 and p.trace != NULL:
        memcpy(p.trace + s.i_moe * p.n_tokens * A, p.route_ids, <size_t>(p.n_tokens * A) * sizeof(int32_t))
    if ith == 0 and s.drop_below > 0 and p.n_tokens <= DROP_TOKENS:
        drop_cold(<MoeState *>state, p)
    for i in range(s.n_tiers):
        if i > 0:
            team_barrier(p.team)     # all have left the plan of the tier before
        tier_run(s, &s.tiers[i], p, ith)
    if s.has_shared:
        dense_ffn(p, &s.shared, p.norm)
    while True:
        t = team_claim(p.team, p.n_tokens)
        if t < 0:
            break
        if s.has_shared:
            gate = <float>1 / (<float>1 + expf(-p.shared_gate[t])) if s.n_router == 2 else 1
            p.isa.scale(<size_t>E, gate, p.norm + t * E, p.norm + t * E)
            p.isa.add(<size_t>E, p.out + t * E, p.norm + t * E, p.out + t * E)
        residual_row(p, t, E, s.residual_scale)
    team_barrier(p.team)


cdef class MoeBlock(Block):
    """x += routed experts (+ shared expert) of norm(x).

    Parameters
    ----------
    il, i_moe : int               layer; its index among the MoE layers
    ffn_norm : Vector (E,)
    norm_bias : Vector (E,) or None
    router : Weight (X, E)
    tiers : list of TierWeights   one or more, first id ascending, together X experts
    n_expert_used : int           A
    gating, norm_topk, weights_scale, select_bias, n_group, n_group_used      see graph.router.route
    shared : (gate, up, down) Weights or None
    shared_gate : Weight (1, E) or None
    residual_scale : float        of what is added to x
    activation : {"silu", "swiglu_oai", "swiglu_clamp"}    of the routed experts
    bound, shared_bound : float   of gate and up: of the routed experts with "swiglu_clamp"; of the shared one, 0 for none
    by_token : IdTable (V, A) or None    experts of each token, in the place of a choice
    """
    cdef readonly object tiers
    cdef readonly int il

    def __init__(self, *, int il, int i_moe, Vector ffn_norm, Weight router, list tiers,
                 int n_expert_used, str gating="softmax", bint norm_topk=True, float weights_scale=1.0,
                 select_bias=None, int n_group=1, int n_group_used=1, shared=None, shared_gate=None,
                 float residual_scale=1.0, norm_bias=None, str activation="silu", float bound=0, float shared_bound=0,
                 by_token=None, float eps):
        cdef MoeState *s = <MoeState *>calloc(1, sizeof(MoeState))
        if s == NULL:
            raise MemoryError
        self.state = s
        self.run = moe_run
        self.keep = [ffn_norm, norm_bias, router, tiers, select_bias, shared, shared_gate, by_token]
        self.tiers, self.il = tuple(tiers), il
        s.il, s.i_moe, s.n_embd, s.eps, s.residual_scale = il, i_moe, router.linear.n_in, eps, residual_scale
        s.norm = ffn_norm.data
        s.norm_bias = (<Vector?>norm_bias).data if norm_bias is not None else NULL
        s.group_pairs, s.activation, s.bound = GROUP_PAIRS, ACTIVATIONS[activation], bound
        if by_token is not None:
            s.by_token, s.by_token_stride = (<IdTable?>by_token).data, (<IdTable>by_token).n_cols
            s.route.ids_given = True
        s.router[0], s.n_router = router.linear, 1
        s.formats = 1u << router.linear.type.x_format
        if shared_gate is not None:
            s.router[1], s.n_router = (<Weight?>shared_gate).linear, 2
            s.formats |= 1u << s.router[1].type.x_format
        s.route.n_expert, s.route.n_expert_used = router.linear.n_rows, n_expert_used
        s.route.gating, s.route.norm_topk = GATINGS[gating], norm_topk
        s.route.scale, s.route.n_group, s.route.n_group_used = weights_scale, n_group, n_group_used
        s.route.select_bias = (<Vector?>select_bias).data if select_bias is not None else NULL
        s.n_tiers = len(tiers)
        for i, tier in enumerate(tiers):
            tier_init(&s.tiers[i], tier)
            s.formats |= 1u << s.tiers[i].bank[GATE].one.type.x_format
            s.formats |= 1u << s.tiers[i].bank[UP].one.type.x_format
        if shared is not None:
            s.has_shared = True
            dense_ffn_init(&s.shared, shared[0], shared[1], shared[2], shared_bound)
            s.formats |= 1u << s.shared.gate_up[0].type.x_format
            s.formats |= 1u << s.shared.gate_up[1].type.x_format

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


cdef class BankWeights:
    """One expert tensor (n_expert, rows, columns) of a tier.

    first : Weight                 expert 0; its `rows` and columns are every expert's
    stride : int                   bytes between two experts
    scale : Vector (n_expert,) or None
    bias : Vector (n_expert * rows,) or None
    """
    cdef readonly Weight first
    cdef readonly int64_t stride
    cdef readonly Vector scale, bias
    cdef readonly object tensor      # loader.banks.BankTensor

    def __init__(self, Weight first, stride, scale, bias, tensor):
        self.first, self.stride, self.scale, self.bias, self.tensor = first, stride, scale, bias, tensor

    @property
    def address(self):
        """Of expert 0's first byte in the mapping."""
        return <size_t>self.first.linear.w


cdef class TierWeights:
    """Experts first .. first + n_expert - 1, their gate, up and down banks."""
    cdef readonly int first, n_expert
    cdef readonly tuple banks

    def __init__(self, int first, int n_expert, BankWeights gate, BankWeights up, BankWeights down):
        self.first, self.n_expert, self.banks = first, n_expert, (gate, up, down)


cdef void tier_init(Tier *tier, TierWeights weights):
    cdef BankWeights b
    tier.first, tier.n_expert = weights.first, weights.n_expert
    for i in range(3):
        b = weights.banks[i]
        tier.bank[i].one = b.first.linear
        tier.bank[i].stride = b.stride
        tier.bank[i].scale = b.scale.data if b.scale is not None else NULL
        tier.bank[i].bias = b.bias.data if b.bias is not None else NULL
