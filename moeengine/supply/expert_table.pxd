"""Experts, the memory slots that hold them, and which to give up. No function here waits or reads."""
from libc.stdint cimport int32_t, int64_t

from moeengine.supply.readers cimport Readers, moe_readers, moe_slice
from moeengine.supply.slab cimport Slab

cdef enum Policy:
    POLICY_LRU = 0     # the expert used longest ago goes
    POLICY_LFU = 1     # the rarest goes, but none of the last tokens', as far as that beats the other policy

cdef struct Expert:
    moe_slice slice[3]   # GATE, UP, DOWN
    int32_t slot         # where its bytes are or will be; -1: nowhere
    bint hinted          # brought in by a prediction and not used yet
    bint keep            # this sweep brings it to stay
    int64_t pin          # step up to which its bytes must stay
    int64_t used         # step of its last use; -1: never
    int64_t order        # of its last use among all uses
    double key           # log2(uses, each halved every half_life tokens) + clock / half_life
    bint in_lru          # the shadow cache of POLICY_LRU holds it
    int32_t older, newer # its neighbours there, -1: none
    int32_t rare         # its place in the shadow cache of rarity; -1: none

cdef struct Slot:
    # Copies of what is compared when a slot is wanted, side by side: one scan instead of a walk.
    int64_t expert       # index into experts; -1: free
    int64_t pin
    int64_t used, order
    double key
    bint in_lru
    char *at

cdef struct Rare:
    # A place in the shadow cache that evicts by rarity alone.
    int64_t expert, used, order
    double key

cdef struct SlotClass:
    # Slots of one size: for the tiers whose experts have it.
    int64_t first, n     # slots first .. first + n - 1
    int64_t n_free
    int64_t slot_bytes
    int64_t n_experts    # of the model, in tiers of this class
    int64_t n_uses       # experts of the class that one token uses, at most
    # POLICY_LFU only. What the two policies would hold in as many slots, and how they did since the start.
    int64_t n_lru, oldest, newest    # linked through the experts
    Rare *rare
    int64_t n_rare
    int64_t hits, hits_lru, hits_rare
    int64_t n_disputed   # uses that one shadow held and the other did not
    int64_t n_behind     # experts that the shadow of LRU holds and the cache does not
    int64_t n_departures # evictions that LRU would not have made

cdef struct TierState:
    Table *table
    int32_t i_class
    int32_t n_expert
    int64_t first        # index of its expert 0
    int64_t i            # tiers count in the order of a pass
    int64_t n_resident   # of its experts, in slots of the class
    int il
    bint sweeping        # this pass streams it through the ring
    bint plain           # this pass reads it from the mapping
    const char *base[3]
    int64_t stride[3]

cdef struct Table:
    moe_readers *pool
    int64_t n_experts, n_tiers, n_slots, n_ring, n_classes
    Expert *experts
    TierState *tiers
    Slot *slots          # the ring's come first: 0 .. n_ring - 1
    SlotClass *classes
    moe_slice **batch    # scratch for one submit
    int policy
    double half_life     # tokens
    double clock         # tokens computed so far
    int64_t step         # tiers begun so far
    int64_t n_touched    # uses so far
    int64_t n_evicted

cdef void touch(Table *t, Expert *e, double uses, int64_t n_tokens) noexcept nogil
cdef void pin(Table *t, Expert *e, int64_t until) noexcept nogil
cdef bint in_flight(Expert *e) noexcept nogil
cdef bint is_broken(Expert *e) noexcept nogil
cdef void place(Table *t, TierState *tier, Expert *e, int64_t slot) noexcept nogil
cdef void vacate(Table *t, int64_t slot) noexcept nogil
cdef int64_t free_slot(Table *t, TierState *tier) noexcept nogil
cdef int64_t slot_for(Table *t, TierState *tier, const Expert *e, bint predicted) noexcept nogil
cdef void shadow_use(Table *t, TierState *tier, Expert *e) noexcept nogil
cdef int shadows_init(Table *t) except -1
cdef void shadows_free(Table *t) noexcept
cdef int64_t free_ring_slot(Table *t) noexcept nogil
cdef void reclaim_ring(Table *t) noexcept nogil

cdef class ExpertTable:
    cdef Table t
    cdef Slab slab
    cdef Readers readers
