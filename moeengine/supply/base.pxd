"""The contract between a supply and the MoE blocks: who calls what, when, from which thread."""
from libc.stdint cimport int32_t, int64_t

from moeengine.kernels.mul_mat_id cimport ExpertHooks, ExpertPlan

# One tier of one MoE layer. A NULL function is a step that a supply does not need.
cdef struct TierHooks:
    void *arg
    # At most so many experts are asked for at once (between two calls of release); 0 = no bound.
    int64_t max_experts
    # By member 0, after routing and before any hook of the tier's banks: which experts come, for how many tokens
    # of the pass. `visit` is NULL, or (plan.n_used) holding 0, 1, ...: the order in which gate and up
    # are computed, which the supply may permute (results do not depend on it).
    void (*begin)(void *arg, const ExpertPlan *plan, int64_t n_tokens, int32_t *visit) noexcept nogil
    # By member 0, after the last use of the tier's bytes in this pass. Follows every begin.
    void (*end)(void *arg) noexcept nogil
    # By member 0, before begin: using expert `ie` would cost a read.
    bint (*is_cold)(void *arg, int32_t ie) noexcept nogil
    # By member 0: these experts of the tier (ids local, ascending) will probably be used by the next
    # pass through it. Never changes results.
    void (*hint)(void *arg, const int32_t *ids, int64_t n) noexcept nogil

# Counters of one phase; written by member 0 only.
cdef struct PhaseCounts:
    int64_t n_passes        # layers begun
    int64_t n_tokens        # counted once a pass, at the first MoE layer
    int64_t n_hits          # experts found in memory that this supply owns
    int64_t n_misses        # experts that were not
    int64_t n_evicted
    int64_t bytes_wanted    # of the misses
    int64_t wait_ns         # compute threads, summed
    int64_t read_bytes
    int64_t upkeep_ns       # inside begin, end, advise, release

# One expert tensor of one tier since the last `take_nodes`.
cdef struct NodeCounts:
    int64_t read_bytes      # asked of the readers
    int64_t bytes_advised
    int64_t bytes_dropped
    int64_t wait_ns         # waits for its slices, or time inside advice calls

cdef enum:
    PREFILL = 0
    DECODE = 1

cdef int64_t now_ns() noexcept nogil

cdef class ExpertSupply:
    """How expert bytes arrive; the base leaves it to the page cache.

    `bind` is called once, before any pass. Passes over one model take turns, so a supply may keep
    state a layer. All functions in hooks are called without the GIL.
    """
    cdef readonly object layers      # list of LayerBanksAt, one a MoE layer
    cdef PhaseCounts phase[2]        # PREFILL, DECODE
    cdef NodeCounts *nodes           # (n_nodes): gate, up, down of every tier, in the order of a pass
    cdef int64_t n_nodes
    # Brings `nodes` up to date before they are reported.
    cdef void count_nodes(self) noexcept
    # Fills the hooks of tier i_tier of MoE layer i_moe; all are zero before. banks: GATE, UP, DOWN.
    cdef int hooks(self, int64_t i_moe, int64_t i_tier, TierHooks *tier, ExpertHooks *banks) except -1
