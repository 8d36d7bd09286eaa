"""What a layer tells the supply of later layers, and which of its own choices it leaves out where that is allowed.

Member 0 of the team runs this between two barriers.
"""
from libc.stdint cimport int32_t, int64_t

from moeengine.graph.block cimport Linear, Pass, ROW_CHUNK, linear_chunk, stream_norm_row
from moeengine.graph.moe_state cimport MoeState, Tier, token_experts
from moeengine.graph.router cimport route_token


cdef bint guess_experts(const MoeState *later, Pass *p) noexcept nogil:
    """p.guess_ids: what the router of a later layer would choose for the one token's state as it is now, or its table does."""
    cdef const Linear *router = &later.router[0]
    cdef int64_t r = 0
    cdef int f = router.type.x_format
    if later.by_token != NULL:
        token_experts(later, p.tokens[0], p.guess_ids)
        return True
    if not later.router_is_early:
        if later.router_norm != NULL:
            p.isa.rms_norm(<size_t>later.n_embd, p.x, later.router_norm, later.eps, p.guess_norm)
        else:
            stream_norm_row(p.isa, &later.norm, later.n_embd, p.x, p.guess_norm)
    p.isa.x[f].quantize_row(<size_t>later.n_embd, p.x if later.router_is_early else p.guess_norm, p.guess_xq)
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
