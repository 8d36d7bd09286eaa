"""From router logits to chosen experts and their weights."""
from libc.math cimport INFINITY, isfinite
from libc.stdint cimport int32_t, int64_t

import numpy as np

from moeengine.kernels.table cimport checked_isa, moe_isa

from moeengine.errors import ConfigError

GATINGS = {"softmax": GATING_SOFTMAX, "sigmoid": GATING_SIGMOID, "softmax_topk": GATING_SOFTMAX_TOPK,
           "sigmoid_topk": GATING_SIGMOID_TOPK,
           "sqrt_softplus": GATING_SQRT_SOFTPLUS}
MIN_WEIGHT_SUM = 6.103515625e-5

cdef extern from "math.h" nogil:
    float expf(float)
    float logf(float)
    float sqrtf(float)


cdef inline float score_of(const RouterConfig *r, const float *probs, int64_t i) noexcept nogil:
    """What expert i is chosen by."""
    return probs[i] + r.select_bias[i] if r.select_bias != NULL else probs[i]


cdef void choose_groups(const RouterConfig *r, const float *probs, bint *chosen) noexcept nogil:
    """chosen (n_group,): the n_group_used groups whose two best scores have the largest sums."""
    cdef int64_t g, i, n, size = r.n_expert // r.n_group
    cdef float first, second, value
    cdef float[MAX_GROUPS] sums
    for g in range(r.n_group):
        first = second = -INFINITY
        for i in range(g * size, (g + 1) * size):
            value = score_of(r, probs, i)
            if value > first:
                first, second = value, first
            elif value > second:
                second = value
        sums[g] = first + second
        chosen[g] = False
    for n in range(r.n_group_used):
        i = -1
        for g in range(r.n_group):
            if not chosen[g] and (i < 0 or sums[g] > sums[i]):
                i = g
        chosen[i] = True


cdef bint choose(const RouterConfig *r, const float *probs, int32_t *ids) noexcept nogil:
    """ids (A,): the experts with the largest scores, largest first. False where fewer have one."""
    cdef int64_t i, j, best
    cdef float value, best_value
    cdef bint grouped = r.n_group > 1
    cdef bint[MAX_GROUPS] chosen
    if grouped:
        choose_groups(r, probs, chosen)
    for j in range(r.n_expert_used):
        best, best_value = -1, -INFINITY
        for i in range(r.n_expert):
            if grouped and not chosen[i * r.n_group // r.n_expert]:
                continue
            value = score_of(r, probs, i)
            if value > best_value and not taken(ids, j, <int32_t>i):
                best, best_value = i, value
        if best < 0:          # a select_bias of -inf or NaN leaves nothing to choose
            return False
        ids[j] = <int32_t>best
    return True


cdef bint route_token(const moe_isa *isa, const RouterConfig *r, float *logits,
                      int32_t *ids, float *weights) noexcept nogil:
    cdef int64_t i, j, X = r.n_expert, A = r.n_expert_used
    cdef float value
    cdef double total = 0
    cdef bint ok = True
    for i in range(X):
        ok = ok and isfinite(logits[i])
    if not ok:
        for j in range(A):
            if not r.ids_given:
                ids[j] = <int32_t>j
            weights[j] = 0
        return False
    if r.gating == GATING_SOFTMAX:
        isa.softmax(<size_t>X, logits)
    elif r.gating == GATING_SIGMOID:
        for i in range(X):
            logits[i] = 1.0 / (1.0 + expf(-logits[i]))
    elif r.gating == GATING_SQRT_SOFTPLUS:
        for i in range(X):
            logits[i] = sqrtf(logits[i] if logits[i] > <float>20 else logf(<float>1 + expf(logits[i])))
    if not r.ids_given and not choose(r, logits, ids):
        return False
    for j in range(A):
        weights[j] = logits[ids[j]]
    if r.gating == GATING_SOFTMAX_TOPK:
        isa.softmax(<size_t>A, weights)
    elif r.gating == GATING_SIGMOID_TOPK:
        for j in range(A):
            weights[j] = 1.0 / (1.0 + expf(-weights[j]))
    if r.norm_topk:
        for j in range(A):
            total += weights[j]
        value = max(<float>total, MIN_WEIGHT_SUM)
        for j in range(A):
            weights[j] = weights[j] / value
    if r.scale != 1.0:
        for j in range(A):
            weights[j] = weights[j] * r.scale
    return True


cdef inline bint taken(const int32_t *ids, int64_t n, int32_t expert) noexcept nogil:
    cdef int64_t j
    for j in range(n):
        if ids[j] == expert:
            return True
    return False


def check_groups(n_expert, n_expert_used, n_group, n_group_used):
    """What is wrong with expert groups, which are of one size, at least two experts each, enough to choose from.

    Returns (name of the argument, what was found and expected), or None.
    """
    if n_group <= 1:
        return None
    if n_group > MAX_GROUPS or n_expert % n_group or n_expert // n_group < 2:
        return "n_group", f"{n_expert} experts in {n_group} groups: expected up to {MAX_GROUPS} groups of one size, 2 experts or more"
    if not 1 <= n_group_used <= n_group:
        return "n_group_used", f"{n_group_used} groups used: expected 1 to {n_group}"
    if n_group_used * (n_expert // n_group) < n_expert_used:
        return "n_expert_used", f"{n_expert_used} experts used: {n_group_used} groups of {n_expert // n_group} have fewer"
    return None


def route(logits, n_expert_used, *, gating="softmax", norm_topk=True, scale=1.0, select_bias=None, n_group=1,
          n_group_used=1):
    """Choose experts and their weights for each token.

    Parameters
    ----------
    logits : float32 (T, X)      router output, any scale
    n_expert_used : int          A; 1 <= A <= X
    gating : {"softmax", "sigmoid", "softmax_topk", "sigmoid_topk", "sqrt_softplus"}
    norm_topk : bool             divide the chosen weights by their sum, at least 6.103515625e-5
    scale : float                factor after normalising (expert_weights_scale)
    select_bias : float32 (X,) or None    added to the scores for the choice only
    n_group, n_group_used : int    choose from the n_group_used groups with the best two experts together

    Returns
    -------
    ids : int32 (T, A)           descending score; ties to the lower id
    weights : float32 (T, A)

    Raises
    ------
    ConfigError                  A or groups out of range, unknown gating, NaN or infinity in the logits

    Source: order of steps as in llama.cpp's build_moe_ffn.
    """
    cdef float[:, ::1] x = np.array(logits, np.float32, ndmin=2)
    cdef int64_t t, T = x.shape[0]
    cdef RouterConfig r
    cdef const float[::1] bias
    if gating not in GATINGS:
        raise ConfigError(f"gating: found {gating!r}, expected one of {', '.join(GATINGS)}")
    if not 1 <= n_expert_used <= x.shape[1]:
        raise ConfigError(f"n_expert_used: found {n_expert_used}, expected 1 to {x.shape[1]}")
    r.n_expert, r.n_expert_used, r.gating = x.shape[1], n_expert_used, GATINGS[gating]
    wrong = check_groups(x.shape[1], n_expert_used, n_group, n_group_used)
    if wrong:
        raise ConfigError(": ".join(wrong))
    r.n_group, r.n_group_used = n_group, n_group_used
    r.norm_topk, r.scale, r.select_bias, r.ids_given = norm_topk, scale, NULL, False
    if select_bias is not None:
        bias = np.ascontiguousarray(select_bias, np.float32)
        if bias.shape[0] != x.shape[1]:
            raise ConfigError(f"select_bias: found {bias.shape[0]} values, expected {x.shape[1]}")
        r.select_bias = &bias[0]
    ids_array = np.empty((T, n_expert_used), np.int32)
    weights_array = np.empty((T, n_expert_used), np.float32)
    cdef int32_t[:, ::1] ids = ids_array
    cdef float[:, ::1] weights = weights_array
    cdef const moe_isa *isa = checked_isa()
    for t in range(T):
        if not route_token(isa, &r, &x[t, 0], &ids[t, 0], &weights[t, 0]):
            raise ConfigError(f"logits: token {t} has NaN or infinity")
    return ids_array, weights_array
