"""Which experts a batch uses, in the order they are visited, and where a supply takes part.

All arrays belong to the caller; nothing here allocates.
"""
from libc.stdint cimport int32_t, int64_t

# Pairs (token, slot) grouped by expert. A pair is the index t*A + s into ids (T, A).
cdef struct ExpertPlan:
    int64_t n_used      # experts with at least one pair
    int32_t *expert     # (n_used) local ids (id - first), strictly ascending
    int64_t *start      # (n_used + 1) pairs of expert[i] are pair[start[i]] .. pair[start[i+1] - 1]
    int32_t *pair       # (start[n_used]) ascending inside one expert, so tokens are in order
    int64_t *count      # scratch of plan_build, (n_expert)

# Where the bytes of a bank come from. A NULL function is a step that this supply does not need.
# `ie` is a local expert id of the plan. advise, ready and release see the used experts in ascending
# order. The member that advises and releases is not waited for: another one may already ask `ready`
# for the next expert.
cdef struct ExpertHooks:
    void *arg
    int64_t n_ahead     # advise(expert[i + n_ahead]) is called before expert[i] is computed
    int64_t n_behind    # release(expert[i - n_behind]) is called after expert[i] was computed
    # A hint: one call an expert, by one team member, before its own part of the expert.
    void (*advise)(void *arg, int32_t ie) noexcept nogil
    # Waits until the slice can be read and returns its first byte; NULL when it cannot be had.
    # Every team member that computes a part of the expert calls it, so it must be safe to call at once.
    # Where `ready` itself is NULL the slice lies at base + ie * stride.
    const char *(*ready)(void *arg, int32_t ie) noexcept nogil
    # As `ready`, but never waits: NULL where the slice is not there yet. The slice is fetched, not read.
    const char *(*peek)(void *arg, int32_t ie) noexcept nogil
    # No member reads the slice any more. One call an expert, by one team member.
    void (*release)(void *arg, int32_t ie) noexcept nogil

# Size of the arrays of one plan: expert (n), start (n + 1) with n = min(n_pairs, n_expert),
# count (n_expert), pair (n_pairs).

# Fills plan from ids[0 .. n_pairs-1]. An id outside [first, first + n_expert) belongs to another bank
# or is -1, and its pair is left out. n_pairs < 2**31. Returns the number of pairs taken
# (start[n_used]).
cdef int64_t plan_build(const int32_t *ids, int64_t n_pairs, int32_t first, int32_t n_expert,
                        ExpertPlan *plan) noexcept nogil

# Called by one team member for i = 0, 1, ... before expert[i] is computed: advice ahead.
cdef void hooks_before(const ExpertHooks *hooks, const ExpertPlan *plan, int64_t i) noexcept nogil
# Called by one team member for i = 0, 1, ... after all members have computed expert[i]: release
# behind; after the last expert, all that are still held.
cdef void hooks_after(const ExpertHooks *hooks, const ExpertPlan *plan, int64_t i) noexcept nogil
# First byte of expert[i] of a bank whose slices lie `stride` bytes apart from `base`; NULL: not to
# be had.
cdef const char *expert_bytes(const ExpertHooks *hooks, const ExpertPlan *plan, int64_t i,
                              const char *base, int64_t stride) noexcept nogil
# The same without waiting; NULL: not there yet.
cdef const char *expert_bytes_now(const ExpertHooks *hooks, const ExpertPlan *plan, int64_t i,
                                  const char *base, int64_t stride) noexcept nogil
