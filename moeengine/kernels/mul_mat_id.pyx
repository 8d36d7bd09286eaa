"""The expert loop: group the (token, slot) pairs by expert, visit the experts in ascending order,
compute each with the rows of its pairs only, and let a supply take part at fixed points.

Arguments from Python are checked in kernels/__init__.py; the graph uses the plan and the hooks too.
"""
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcpy, memset

import numpy as np

from ..errors import SupplyError
from .products import aligned_bytes

from .table cimport checked_isa, moe_isa, moe_mul, moe_type, moe_x, moe_x_row_bytes
from .threads cimport Team, moe_team, team_barrier, team_claim, team_run

cdef int64_t CHUNK = 64     # rows of weights that a team member takes at a time


cdef int64_t plan_build(const int32_t *ids, int64_t n_pairs, int32_t first, int32_t n_expert,
                        ExpertPlan *plan) noexcept nogil:
    cdef int64_t p, ie, end = 0, n
    memset(plan.count, 0, n_expert * sizeof(int64_t))
    for p in range(n_pairs):
        ie = <int64_t>ids[p] - first
        if 0 <= ie < n_expert:
            plan.count[ie] += 1
    plan.n_used = 0
    for ie in range(n_expert):
        n = plan.count[ie]
        if n > 0:
            plan.expert[plan.n_used] = <int32_t>ie
            plan.start[plan.n_used] = end
            plan.n_used += 1
            plan.count[ie] = end        # from here on: where its next pair goes
            end += n
    plan.start[plan.n_used] = end
    for p in range(n_pairs):
        ie = <int64_t>ids[p] - first
        if 0 <= ie < n_expert:
            plan.pair[plan.count[ie]] = <int32_t>p
            plan.count[ie] += 1
    return end


cdef void hooks_before(const ExpertHooks *hooks, const ExpertPlan *plan, int64_t i) noexcept nogil:
    cdef int64_t k
    if hooks == NULL or hooks.advise == NULL:
        return
    for k in range(0 if i == 0 else i + hooks.n_ahead, min(i + hooks.n_ahead + 1, plan.n_used)):
        hooks.advise(hooks.arg, plan.expert[k])


cdef void hooks_after(const ExpertHooks *hooks, const ExpertPlan *plan, int64_t i) noexcept nogil:
    cdef int64_t k, end
    if hooks == NULL or hooks.release == NULL:
        return
    end = plan.n_used if i == plan.n_used - 1 else i - hooks.n_behind + 1
    for k in range(max(0, i - hooks.n_behind), end):
        hooks.release(hooks.arg, plan.expert[k])


cdef const char *expert_bytes(const ExpertHooks *hooks, const ExpertPlan *plan, int64_t i,
                              const char *base, int64_t stride) noexcept nogil:
    if hooks != NULL and hooks.ready != NULL:
        return hooks.ready(hooks.arg, plan.expert[i])
    return base + plan.expert[i] * stride


cdef const char *expert_bytes_now(const ExpertHooks *hooks, const ExpertPlan *plan, int64_t i,
                                  const char *base, int64_t stride) noexcept nogil:
    if hooks != NULL and hooks.ready != NULL:
        return hooks.peek(hooks.arg, plan.expert[i]) if hooks.peek != NULL else NULL
    return base + plan.expert[i] * stride


cdef struct ExpertProduct:
    const moe_type *type
    const moe_x *x_format
    moe_team *team
    const ExpertPlan *plan
    const ExpertHooks *hooks
    const char *bank        # expert 0
    int64_t bank_stride     # bytes between two experts
    int64_t n_rows
    int64_t w_stride        # bytes between two rows of an expert
    int64_t n_in
    const float *values     # activation rows, not quantized yet
    int64_t slots_per_row   # pair p multiplies values row p // slots_per_row
    char *x                 # (n, x_stride) the rows of plan.pair, quantized
    int64_t x_stride
    float *products         # (n, n_rows) in the order of plan.pair
    float *out              # (T*A, n_rows)
    int32_t failed          # an expert whose bytes could not be had, or -1


# Rows chunk*CHUNK .. of expert[i] with all its pairs.
cdef void _expert_rows(ExpertProduct *p, int64_t i, int64_t chunk) noexcept nogil:
    cdef moe_mul mul
    cdef int64_t begin = p.plan.start[i], row = chunk * CHUNK
    cdef const char *w = expert_bytes(p.hooks, p.plan, i, p.bank, p.bank_stride)
    if w == NULL:
        p.failed = p.plan.expert[i]
        return
    mul.n_in = p.n_in
    mul.n_rows = min(CHUNK, p.n_rows - row)
    mul.w = w + row * p.w_stride
    mul.w_stride = p.w_stride
    mul.n_x = p.plan.start[i + 1] - begin
    mul.x = p.x + begin * p.x_stride
    mul.x_stride = p.x_stride
    mul.out = p.products + begin * p.n_rows + row
    mul.out_stride = p.n_rows
    mul.next = NULL
    p.type.mul_mat(&mul)


cdef void _experts(void *arg, int ith, int nth) noexcept nogil:
    cdef ExpertProduct *p = <ExpertProduct *>arg
    cdef int64_t n_used = p.plan.n_used, n_pairs = p.plan.start[n_used]
    cdef int64_t n_chunks = (p.n_rows + CHUNK - 1) // CHUNK
    cdef int64_t i, c, j
    j = ith
    while j < n_pairs:
        p.x_format.quantize_row(p.n_in, p.values + p.plan.pair[j] // p.slots_per_row * p.n_in,
                                p.x + j * p.x_stride)
        j += nth
    team_barrier(p.team)
    if p.hooks == NULL:     # nobody has to know when an expert is done
        c = team_claim(p.team, n_used * n_chunks)
        while c >= 0:
            _expert_rows(p, c // n_chunks, c % n_chunks)
            c = team_claim(p.team, n_used * n_chunks)
        team_barrier(p.team)
    else:
        for i in range(n_used):
            if ith == 0:
                hooks_before(p.hooks, p.plan, i)
            c = team_claim(p.team, n_chunks)
            while c >= 0:
                _expert_rows(p, i, c)
                c = team_claim(p.team, n_chunks)
            team_barrier(p.team)
            if ith == 0:
                hooks_after(p.hooks, p.plan, i)
    j = ith
    while j < n_pairs:
        memcpy(p.out + p.plan.pair[j] * p.n_rows, p.products + j * p.n_rows,
               p.n_rows * sizeof(float))
        j += nth


cdef class _CallableHooks:
    """Python callables as hooks; each may be None. `ready` returns False: no bytes to be had."""
    cdef ExpertHooks c
    cdef const char *bank
    cdef int64_t bank_stride
    cdef object advise, ready, release, error


cdef void _call_advise(void *arg, int32_t ie) noexcept with gil:
    cdef _CallableHooks h = <_CallableHooks>arg
    try:
        h.advise(ie)
    except BaseException as err:
        h.error = err


cdef const char *_call_ready(void *arg, int32_t ie) noexcept with gil:
    cdef _CallableHooks h = <_CallableHooks>arg
    try:
        if h.ready(ie) is not False:
            return h.bank + ie * h.bank_stride
    except BaseException as err:
        h.error = err
    return NULL


cdef void _call_release(void *arg, int32_t ie) noexcept with gil:
    cdef _CallableHooks h = <_CallableHooks>arg
    try:
        h.release(ie)
    except BaseException as err:
        h.error = err


def callable_hooks(*, advise=None, ready=None, release=None, int n_ahead=2, int n_behind=2):
    """Hooks for mul_mat_id from Python callables of one expert id, to watch the loop in tests."""
    cdef _CallableHooks h = _CallableHooks.__new__(_CallableHooks)
    h.advise, h.ready, h.release = advise, ready, release
    h.c.arg = <void *>h
    h.c.n_ahead, h.c.n_behind = n_ahead, n_behind
    h.c.advise = h.c.release = NULL
    h.c.ready = h.c.peek = NULL
    if advise is not None:
        h.c.advise = <void (*)(void *, int32_t) noexcept nogil>_call_advise
    if ready is not None:
        h.c.ready = <const char *(*)(void *, int32_t) noexcept nogil>_call_ready
    if release is not None:
        h.c.release = <void (*)(void *, int32_t) noexcept nogil>_call_release
    return h


def build_plan(const int32_t[::1] ids, int first, int n_expert):
    """plan_build for Python: used experts int32 (n), start int64 (n + 1), pairs int32 (start[n])."""
    cdef ExpertPlan plan
    expert, start, pair, count = _plan_arrays(ids.shape[0], n_expert, &plan)
    plan_build(&ids[0] if ids.shape[0] else NULL, ids.shape[0], first, n_expert, &plan)
    return expert[:plan.n_used], start[:plan.n_used + 1], pair[:plan.start[plan.n_used]]


cdef tuple _plan_arrays(int64_t n_pairs, int64_t n_expert, ExpertPlan *plan):
    """Arrays for plan, which points into them."""
    cdef int64_t n = min(n_pairs, n_expert)
    cdef int32_t[::1] expert = np.empty(n + 1, np.int32), pair = np.empty(n_pairs + 1, np.int32)
    cdef int64_t[::1] start = np.empty(n + 1, np.int64), count = np.empty(n_expert + 1, np.int64)
    plan.expert, plan.start, plan.pair, plan.count = &expert[0], &start[0], &pair[0], &count[0]
    return expert.base, start.base, pair.base, count.base


def mul_mat_id_rows(const uint8_t[:, :, :] raw, int type_id, const float[:, ::1] x,
                    const int32_t[::1] ids, float[:, ::1] out, Team team,
                    _CallableHooks hooks=None):
    """out (P, R): row p is W[ids[p]] @ x[p * len(x) // P], or zero where ids[p] is -1.

    raw uint8 (X, R, bytes), last axis contiguous; x (P / slots, C); ids (P) in -1 .. X-1.

    Raises
    ------
    SupplyError     `ready` said that the bytes of an expert cannot be had
    """
    cdef const moe_isa *isa = checked_isa()
    cdef ExpertProduct p
    cdef ExpertPlan plan
    cdef int64_t n
    out[:, :] = 0
    if out.shape[0] == 0 or out.shape[1] == 0 or x.shape[1] == 0:
        return
    arrays = _plan_arrays(ids.shape[0], raw.shape[0], &plan)     # kept until the end
    n = plan_build(&ids[0], ids.shape[0], 0, <int32_t>raw.shape[0], &plan)
    if n == 0:
        return
    p.type = &isa.types[type_id]
    p.x_format = &isa.x[p.type.x_format]
    p.team = team.team
    p.plan = &plan
    p.bank, p.bank_stride = <const char *>&raw[0, 0, 0], raw.strides[0]
    p.n_rows, p.w_stride, p.n_in = raw.shape[1], raw.strides[1], x.shape[1]
    p.values = &x[0, 0]
    p.slots_per_row = ids.shape[0] // x.shape[0]
    p.x_stride = moe_x_row_bytes(isa, p.type.x_format, p.n_in)
    cdef uint8_t[::1] rows = aligned_bytes(n * p.x_stride)
    p.x = <char *>&rows[0]
    cdef float[:, ::1] products = np.empty((n, p.n_rows), np.float32)
    p.products, p.out = &products[0, 0], &out[0, 0]
    p.failed = -1
    p.hooks = NULL
    if hooks is not None:
        hooks.bank, hooks.bank_stride = p.bank, p.bank_stride
        p.hooks = &hooks.c
    with nogil:
        team_run(team.team, _experts, &p)
    if hooks is not None and hooks.error is not None:
        raise hooks.error
    if p.failed >= 0:
        raise SupplyError(f"expert {p.failed}: its bytes could not be brought in")
    del arrays
