"""Where experts are in memory. A slot holds one whole expert: its three slices one after another.

Two kinds of slots: those of the ring hold an expert only while a sweep passes over it; the others are
the cache, split into classes by size, and hold an expert until another one needs the place more.
All is written by member 0 of the team; the others only look at slices.
"""
from libc.math cimport INFINITY, exp2, log2
from libc.stdint cimport int32_t, int64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from moeengine.supply.readers cimport (
    MOE_SLICE_ABSENT, MOE_SLICE_FAILED, MOE_SLICE_QUEUED, MOE_SLICE_READING, moe_slice_forget, moe_slice_get,
    readers_cancel, slice_wait,
)


# Tokens after which a use counts half. Simulation favours long ones where routing is stationary and
# short ones where it is not; with the guard, 32 to 1000 differ little.
HALF_LIFE_TOKENS = 64


cdef void touch(Table *t, Expert *e, double uses, int64_t n_tokens) noexcept nogil:
    """Counts `uses` among the last n_tokens tokens; keeps the expert for this step."""
    cdef double now = t.clock / t.half_life, spread = t.half_life * 1.44 / n_tokens
    e.key = log2(exp2(e.key - now) + uses * min(1.0, spread)) + now
    e.used = t.step
    pin(t, e, t.step)


cdef void pin(Table *t, Expert *e, int64_t until) noexcept nogil:
    e.pin = max(e.pin, until)
    if e.slot >= 0:
        _note(t, e)


cdef inline void _note(Table *t, Expert *e) noexcept nogil:
    cdef Slot *s = &t.slots[e.slot]
    s.pin, s.used, s.key = e.pin, e.used, e.key


cdef bint in_flight(Expert *e) noexcept nogil:
    cdef int b
    cdef unsigned state
    for b in range(3):
        state = moe_slice_get(&e.slice[b])
        if state == MOE_SLICE_QUEUED or state == MOE_SLICE_READING:
            return True
    return False


cdef bint is_broken(Expert *e) noexcept nogil:
    cdef int b
    for b in range(3):
        if moe_slice_get(&e.slice[b]) == MOE_SLICE_FAILED:
            return True
    return False


cdef void place(Table *t, TierState *tier, Expert *e, int64_t slot) noexcept nogil:
    """Gives the expert the free slot; its slices are still to be submitted."""
    cdef int b
    cdef Slot *s = &t.slots[slot]
    cdef char *at = s.at
    for b in range(3):
        e.slice[b].to = at
        moe_slice_forget(&e.slice[b])
        at += e.slice[b].length
    e.slot = <int32_t>slot
    s.expert = e - t.experts
    if slot >= t.n_ring:
        t.classes[tier.i_class].n_free -= 1
        tier.n_resident += 1
    _note(t, e)


cdef void vacate(Table *t, int64_t slot) noexcept nogil:
    """Frees a slot. Queued reads are dropped, one under way is waited for: it writes into the slot."""
    cdef Slot *s = &t.slots[slot]
    cdef Expert *e
    cdef TierState *tier
    cdef int b
    if s.expert < 0:
        return
    e = &t.experts[s.expert]
    for b in range(3):
        if (moe_slice_get(&e.slice[b]) != MOE_SLICE_ABSENT
                and not readers_cancel(t.pool, &e.slice[b])):
            slice_wait(t.pool, &e.slice[b])
        moe_slice_forget(&e.slice[b])
    if slot >= t.n_ring:
        tier = _tier_of(t, s.expert)
        t.classes[tier.i_class].n_free += 1
        tier.n_resident -= 1
    e.slot = -1
    s.expert = -1


cdef TierState *_tier_of(Table *t, int64_t expert) noexcept nogil:
    cdef int64_t low = 0, high = t.n_tiers, middle
    while high - low > 1:
        middle = (low + high) // 2
        if t.tiers[middle].first <= expert:
            low = middle
        else:
            high = middle
    return &t.tiers[low]


cdef int64_t free_slot(Table *t, TierState *tier) noexcept nogil:
    """A free cache slot for an expert of the tier, or -1."""
    cdef SlotClass *c = &t.classes[tier.i_class]
    cdef int64_t i
    if c.n_free == 0:
        return -1
    for i in range(c.first, c.first + c.n):
        if t.slots[i].expert < 0:
            return i
    return -1


cdef int64_t slot_for(Table *t, TierState *tier) noexcept nogil:
    """A cache slot for an expert of the tier, freed if need be; -1 where every one is in use."""
    cdef SlotClass *c = &t.classes[tier.i_class]
    cdef int64_t i, best = free_slot(t, tier), recent
    cdef double key, lowest = INFINITY
    if best >= 0:
        return best
    recent = t.step - t.n_tiers      # used after this: by the last token
    for i in range(c.first, c.first + c.n):
        if t.slots[i].pin >= t.step:
            continue
        key = <double>t.slots[i].used
        if t.policy == POLICY_LFU:   # among guarded ones the oldest, after all that are not
            key = t.slots[i].key if t.slots[i].used <= recent else 1e12 + key
        if (key < lowest or best < 0) and not in_flight(&t.experts[t.slots[i].expert]):
            lowest = key
            best = i
    if best < 0:                     # predictions that nobody asked for any more
        for i in range(c.first, c.first + c.n):
            if t.slots[i].pin < t.step:
                best = i
                break
    if best >= 0:
        vacate(t, best)
        t.n_evicted += 1
    return best


cdef int64_t free_ring_slot(Table *t) noexcept nogil:
    cdef int64_t i
    for i in range(t.n_ring):
        if t.slots[i].expert < 0:
            return i
    return -1


cdef void reclaim_ring(Table *t) noexcept nogil:
    """Frees the ring slots of experts that this step does not use."""
    cdef int64_t i
    for i in range(t.n_ring):
        if t.slots[i].expert >= 0 and t.slots[i].pin < t.step:
            vacate(t, i)


cdef class ExpertTable:
    """All experts of a model, and slots for some of them.

    Parameters
    ----------
    model_at : ModelAt
    readers : Readers
    cache_bytes : int      at most, for the cache; whole slots are made of it
    n_ring : int           slots of the ring, each as large as the largest expert
    policy : {"lru", "lfu"}
    """

    def __cinit__(self):
        memset(&self.t, 0, sizeof(Table))

    def __init__(self, model_at, Readers readers, *, int64_t cache_bytes, int64_t n_ring, str policy):
        cdef Table *t = &self.t
        cdef TierState *tier
        cdef int64_t at, i, s
        self.readers = readers
        sizes = sizes_of(model_at, readers.alignment)
        class_bytes = sorted({size for _, _, size in sizes}, reverse=True)
        counts = split_cache(sizes, cache_bytes)
        t.pool, t.n_tiers, t.n_classes, t.n_ring = readers.pool, len(sizes), len(class_bytes), n_ring
        t.n_experts = sum(tier_at.n_expert for _, tier_at, _ in sizes)
        t.n_slots = n_ring + sum(counts.values())
        t.policy, t.half_life = POLICY_LFU if policy == "lfu" else POLICY_LRU, HALF_LIFE_TOKENS
        t.experts = <Expert *>calloc(max(1, t.n_experts), sizeof(Expert))
        t.tiers = <TierState *>calloc(max(1, t.n_tiers), sizeof(TierState))
        t.slots = <Slot *>calloc(max(1, t.n_slots), sizeof(Slot))
        t.classes = <SlotClass *>calloc(max(1, t.n_classes), sizeof(SlotClass))
        t.batch = <moe_slice **>calloc(3 * max([1] + [a.n_expert for _, a, _ in sizes]), sizeof(moe_slice *))
        if not (t.experts and t.tiers and t.slots and t.classes and t.batch):
            raise MemoryError
        ring_bytes = n_ring * max(class_bytes, default=0)
        self.slab = Slab(ring_bytes + sum(n * size for size, n in counts.items()))
        for s in range(n_ring):
            t.slots[s].at = self.slab.base + s * <int64_t>max(class_bytes, default=0)
        s, at = n_ring, ring_bytes
        for i, size in enumerate(class_bytes):
            t.classes[i].first, t.classes[i].n, t.classes[i].n_free = s, counts[size], counts[size]
            t.classes[i].slot_bytes = size
            for s in range(s, s + counts[size]):
                t.slots[s].at = self.slab.base + at
                at += size
            s = t.classes[i].first + counts[size]
        for s in range(t.n_slots):
            t.slots[s].expert = -1
        at = 0
        for i, (il, tier_at, size) in enumerate(sizes):
            tier = &t.tiers[i]
            tier.table, tier.i, tier.il = t, i, il
            tier.i_class, tier.n_expert, tier.first = class_bytes.index(size), tier_at.n_expert, at
            t.classes[tier.i_class].n_experts += tier_at.n_expert
            for b in range(3):
                tier.base[b] = <const char *><uintptr_t>tier_at.banks[b].address
                tier.stride[b] = tier_at.banks[b].tensor.expert_stride
            self._describe(i, tier_at)
            at += tier_at.n_expert

    def _describe(self, int64_t i, tier_at):
        """Fills in which bytes of which file each slice of the tier's experts is."""
        cdef TierState *tier = &self.t.tiers[i]
        cdef int64_t align = self.readers.alignment, offset, n, begin, end
        cdef Expert *e
        for ie in range(tier.n_expert):
            e = &self.t.experts[tier.first + ie]
            e.slot, e.used, e.pin, e.key = -1, -1, -1, -INFINITY
            for b in range(3):
                shard, offset, n = tier_at.banks[b].tensor.slice(ie)
                begin = offset // align * align
                end = (offset + n + align - 1) // align * align
                e.slice[b].file, e.slice[b].offset, e.slice[b].length = shard, begin, end - begin
                e.slice[b].skip, e.slice[b].need = <int32_t>(offset - begin), offset - begin + n

    def residents(self):
        """Experts in cache slots now."""
        cdef int64_t i, n = 0
        for i in range(self.t.n_ring, self.t.n_slots):
            n += self.t.slots[i].expert >= 0
        return n

    @property
    def n_cache_slots(self):
        return self.t.n_slots - self.t.n_ring

    @property
    def n_bytes(self):
        """Bytes of all slots."""
        return self.slab.n_bytes

    def huge_bytes(self):
        return self.slab.huge_bytes()

    def close(self):
        """Drop the slots; the readers have ended before."""
        if self.slab is not None:
            self.slab.close()
        self.t.pool = NULL

    def __dealloc__(self):
        free(self.t.experts)
        free(self.t.tiers)
        free(self.t.slots)
        free(self.t.classes)
        free(self.t.batch)


def sizes_of(model_at, alignment):
    """The tiers in the order of a pass: list of (il, TierAt, bytes of a slot for one of its experts)."""
    found = []
    for layer in model_at.layers:
        for tier in layer.tiers:
            slot = 0
            for bank in tier.banks:
                n = bank.tensor.expert_bytes
                # wherever it starts, with its first and last unit of alignment
                slot += (n + alignment - 1) // alignment * alignment + alignment
            found.append((layer.il, tier, slot))
    return found


def bytes_of_token(sizes, n_expert_used):
    """Cache bytes that hold all experts one token may use."""
    return sum(min(n_expert_used, tier.n_expert) * slot for _, tier, slot in sizes)


def split_cache(sizes, cache_bytes):
    """Slots of each size: dict of slot bytes -> count, in proportion to the experts of that size."""
    experts = {}
    for _, tier, slot in sizes:
        experts[slot] = experts.get(slot, 0) + tier.n_expert
    whole = sum(slot * n for slot, n in experts.items())
    if cache_bytes >= whole:
        return experts
    counts = {slot: n * cache_bytes // whole for slot, n in experts.items()}
    left = cache_bytes - sum(slot * n for slot, n in counts.items())
    for slot in sorted(experts, reverse=True):
        more = min(left // slot, experts[slot] - counts[slot])
        counts[slot] += more
        left -= more * slot
    return counts
