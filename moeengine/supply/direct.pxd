from libc.stdint cimport int32_t, int64_t

from moeengine.kernels.mul_mat_id cimport ExpertPlan
from moeengine.supply.base cimport ExpertSupply, NodeCounts, PhaseCounts
from moeengine.supply.dense_ahead cimport DenseAhead
from moeengine.supply.expert_table cimport ExpertTable, Table, TierState
from moeengine.supply.readers cimport Readers, moe_reader_counts

cdef struct BankState:
    Direct *d
    TierState *tier
    int b                    # GATE, UP, DOWN

cdef struct TierArg:
    Direct *d
    TierState *tier

cdef struct Direct:
    Table *t
    DenseAhead dense
    PhaseCounts *phases      # the supply's own
    NodeCounts *nodes        # the supply's own
    int phase                # of the pass at work
    moe_reader_counts seen   # readers' counts that a phase already has
    int64_t plain_below      # passes of fewer tokens read from the mapping
    int64_t sweep_from       # passes of at least so many tokens go through the ring
    TierState *at            # tier that is swept, its plan, and how far it was submitted
    const ExpertPlan *plan
    int64_t todo
    int64_t n_hints          # experts read because of a prediction
    int64_t n_hints_used     # and used by the pass it was for, or a later one
    int64_t recent_hints, recent_used, n_hints_withheld     # how predictions have fared lately
    int64_t hint_steps       # tiers for which a predicted expert must stay
    int64_t failed_expert    # whose bytes could not be had last; -1: none
    int failed_bank, failed_errno

cdef class DirectSupply(ExpertSupply):
    cdef Direct d
    cdef readonly ExpertTable table
    cdef readonly Readers readers
    cdef BankState *banks
    cdef TierArg *tier_args
    cdef object settings
    cdef object paths
