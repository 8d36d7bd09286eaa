"""The experts of one tier, in ascending id, in groups of a few hundred (token, slot) pairs: gather rows, gate and up and their
activation, quantize, down, weighted sum. Nothing of size tokens x experts is kept beyond one group.
"""
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcpy, memset

from moeengine.graph.activation cimport RELU_SQR, activate
from moeengine.graph.block cimport (
    Linear, Pass, PASS_NAN_EXPERT, PASS_SUPPLY, cancelled, even_chunk, linear_chunk, pass_fail, row_chunk, x_chunk,
)
from moeengine.graph.expert_hints cimport guess_ahead
from moeengine.graph.moe_state cimport DOWN, GATE, UP, Bank, MoeState, Tier
from moeengine.kernels.mul_mat_id cimport (
    ExpertPlan, expert_bytes, expert_bytes_now, hooks_after, hooks_before, plan_build,
)
from moeengine.kernels.table cimport moe_fetch_for_writing, moe_weighted, moe_x_row_bytes
from moeengine.kernels.threads cimport team_barrier, team_claim, team_size

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


cdef void gather(const MoeState *s, const Tier *tier, Pass *p, const Group *g,
                 const uint8_t **x, size_t *stride, float *row) noexcept nogil:
    """Activation rows of the group's pairs in a row, for gate and for up; row (E,) is scratch. Ends with a barrier."""
    cdef int i, f, same = tier.bank[GATE].one.type.x_format == tier.bank[UP].one.type.x_format
    cdef int64_t k, n = g.p1 - g.p0, A = s.route.n_expert_used
    cdef int32_t pair
    cdef uint8_t *to = p.gx
    cdef bint is_one = p.n_tokens == 1 and not s.weigh_inputs    # every pair has the one row there is
    for i in range(2):
        f = tier.bank[i].one.type.x_format
        stride[i] = moe_x_row_bytes(p.isa, f, <size_t>s.n_embd)
        if is_one:
            x[i] = p.xq[f]
            stride[i] = 0
        elif i == 1 and same:
            x[i] = x[0]
        else:
            x[i] = to
            to += <size_t>n * stride[i]
    if is_one:
        return
    while True:
        k = team_claim(p.team, n)
        if k < 0:
            break
        pair = p.plan.pair[g.p0 + k]
        if s.weigh_inputs:      # with that the weight has had its effect
            p.isa.scale(<size_t>s.n_embd, p.route_weights[pair], p.norm + pair // A * s.n_embd, row)
            p.route_weights[pair] = 1
        for i in range(1 if same else 2):
            f = tier.bank[i].one.type.x_format
            if s.weigh_inputs:
                p.isa.x[f].quantize_row(<size_t>s.n_embd, row, <uint8_t *>x[i] + <size_t>k * stride[i])
            else:
                memcpy(<uint8_t *>x[i] + <size_t>k * stride[i], p.xq[f] + <size_t>(pair // A) * stride[i], stride[i])
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
    """hidden[pair] = activation(gate x, up x), or activation(up x), for all pairs of the group. Ends with a barrier."""
    cdef int64_t F = tier.bank[UP].one.n_rows, ld = tier.bank[DOWN].one.n_in
    cdef int64_t n_r = even_chunk(F, row_chunk(p, F * (g.i1 - g.i0), p.n_tokens)), n_rc = (F + n_r - 1) // n_r
    cdef int64_t n_xc = x_chunk(stride[0], p.n_tokens), unit, n_units = 0, i, t, n_t
    cdef float *row
    cdef const uint8_t *next_w
    cdef Linear gate, up
    cdef GateUnit u, later
    cdef bint has_gate = s.activation.kind != RELU_SQR
    cdef int first = GATE if has_gate else UP
    for i in range(g.i0, g.i1):
        n_units += n_rc * ((p.plan.start[i + 1] - p.plan.start[i] + n_xc - 1) // n_xc)
    while True:
        unit = team_claim(p.team, n_units)
        if unit < 0:
            break
        if cancelled(p):
            continue
        gate_unit(&p.plan, g, F, n_r, n_xc, unit, &u)
        bank_expert(&tier.bank[UP], &p.plan, u.i, &up)
        if has_gate:
            bank_expert(&tier.bank[GATE], &p.plan, u.i, &gate)
        if up.w == NULL or has_gate and gate.w == NULL:
            pass_fail(p, PASS_SUPPLY, s.il, tier.first + p.plan.expert[u.i])
            continue
        n_t = u.t1 - u.t0
        row = p.hidden + u.t0 * ld
        if has_gate:
            linear_chunk(p.isa, &gate, u.r0, u.r1, n_t, x[GATE] + <size_t>u.t0 * stride[GATE], stride[GATE],
                         row, <size_t>ld, up.w + <size_t>u.r0 * up.row_bytes)
        next_w = NULL
        if gate_unit(&p.plan, g, F, n_r, n_xc, unit + team_size(p.team), &later):     # threads take turns, as a rule
            next_w = bank_row(&tier.bank[first], &p.plan, later.i, later.r0)
        linear_chunk(p.isa, &up, u.r0, u.r1, n_t, x[UP] + <size_t>u.t0 * stride[UP], stride[UP],
                     tmp - u.r0, <size_t>n_r, next_w)
        for t in range(n_t):
            activate(p.isa, &s.activation, u.r1 - u.r0, row + t * ld + u.r0, tmp + t * n_r)
    team_barrier(p.team)


cdef void quantize_hidden(const MoeState *s, const Tier *tier, Pass *p, const Group *g) noexcept nogil:
    """Hidden rows into the format that `down` is multiplied with. Ends with a barrier."""
    cdef int64_t k, F = tier.bank[UP].one.n_rows, n = tier.bank[DOWN].one.n_in
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
        gather(s, tier, p, &g, x, stride, tmp)
        gate_up(s, tier, p, &g, x, stride, tmp)
        quantize_hidden(s, tier, p, &g)
        down_sum(s, tier, p, &g, tmp)
        if ith == 0:
            for i in range(g.i0, g.i1):
                for b in range(3):
                    hooks_after(&tier.bank[b].hooks, &p.plan, i)
    if ith == 0 and tier.supply.end != NULL:
        tier.supply.end(tier.supply.arg)
