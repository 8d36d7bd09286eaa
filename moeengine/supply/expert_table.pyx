"""Where experts are in memory. A slot holds one whole expert: its three slices one after another.

Two kinds of slots: those of the ring hold an expert only while a sweep passes over it; the others are
the cache, split into classes by size, and hold an expert until another one needs the place more.
All is written by member 0 of the team; the others only look at slices.
"""
cimport cython
from libc.math cimport INFINITY, exp2, log2, sqrt
from libc.stdint cimport int32_t, int64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from moeengine.supply.readers cimport (
    MOE_SLICE_ABSENT, MOE_SLICE_FAILED, MOE_SLICE_QUEUED, MOE_SLICE_READING, moe_slice_forget, moe_slice_get,
    readers_cancel, slice_wait,
)


# Tokens after which a use counts half. Simulation favours long ones where routing is stationary and
# short ones where it is not; with the guard, 32 to 1000 differ little.
HALF_LIFE_TOKENS = 128

cdef double GUARDED = 1e12          # above every key
cdef double GUARD_SHARE = 1.0 / 3   # of the cache
# Rarity starts at LRU's side and departs from it once its shadow is ahead by so many standard deviations of the
# difference; it can then never fall more than the loan behind.
cdef double DOUBT = 4, MOST_LOAN = 64


cdef void touch(Table *t, Expert *e, double uses, int64_t n_tokens) noexcept nogil:
    """Counts `uses` among the last n_tokens tokens; keeps the expert for this step."""
    cdef SlotClass *c
    cdef double now = t.clock / t.half_life, spread = t.half_life * 1.44 / n_tokens
    e.key = log2(exp2(e.key - now) + uses * min(1.0, spread)) + now
    t.n_touched += 1
    e.used, e.order = t.step, t.n_touched
    pin(t, e, t.step)
    if t.policy == POLICY_LFU:
        c = &t.classes[_tier_of(t, e - t.experts).i_class]
        if e.in_lru:
            lru_renew(t, c, e)
        if e.rare >= 0:
            note_rare(c, e)


cdef void pin(Table *t, Expert *e, int64_t until) noexcept nogil:
    e.pin = max(e.pin, until)
    if e.slot >= 0:
        _note(t, e)


cdef inline void _note(Table *t, Expert *e) noexcept nogil:
    cdef Slot *s = &t.slots[e.slot]
    s.pin, s.used, s.order, s.key = e.pin, e.used, e.order, e.key


cdef inline void note_rare(SlotClass *c, Expert *e) noexcept nogil:
    cdef Rare *r = &c.rare[e.rare]
    r.used, r.order, r.key = e.used, e.order, e.key


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
    cdef SlotClass *c
    cdef Slot *s = &t.slots[slot]
    cdef char *at = s.at
    for b in range(3):
        e.slice[b].to = at
        moe_slice_forget(&e.slice[b])
        at += e.slice[b].length
    e.slot = <int32_t>slot
    s.expert = e - t.experts
    s.in_lru = e.in_lru
    if slot >= t.n_ring:
        c = &t.classes[tier.i_class]
        c.n_free -= 1
        tier.n_resident += 1
        c.n_behind -= e.in_lru
        if t.policy == POLICY_LFU:       # while there is room either policy would take it
            if not e.in_lru and c.n_lru < c.n:
                lru_add(t, c, e)
            if e.rare < 0 and c.n_rare < c.n:
                rare_add(t, c, e)
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
        t.classes[tier.i_class].n_behind += e.in_lru
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


cdef int64_t slot_for(Table *t, TierState *tier, const Expert *e, bint predicted) noexcept nogil:
    """A cache slot for expert `e` of the tier, freed if need be; -1 where every one is in use. Other predictions give way
    to an expert that is not `predicted` itself."""
    cdef SlotClass *c = &t.classes[tier.i_class]
    cdef int64_t i, best = free_slot(t, tier)
    cdef Slot *s
    if best >= 0:
        return best
    best = victim(t, c, e)
    if best < 0:                     # what is being read, but nobody asked for any more; of predictions the nearest its end
        for i in range(c.first, c.first + c.n):
            s = &t.slots[i]
            if (s.pin < t.step or (not predicted and s.used < t.step)) and (best < 0 or s.pin < t.slots[best].pin):
                best = i
    if best >= 0:
        vacate(t, best)
        t.n_evicted += 1
    return best


cdef int64_t victim(Table *t, SlotClass *c, const Expert *e) noexcept nogil:
    """The slot to give up for `e`, not pinned and not being read into; -1: none.

    The rarest goes, but no evicted expert may cost more than rarity has gained: what has been gained over LRU so
    far, less what LRU's shadow holds and the cache lacks, never falls below minus the loan. Where nothing is left to
    spend, what LRU has given up already goes first, and then what LRU gives up: neither can fall behind further.
    """
    cdef int64_t i, oldest = -1, rarest = -1, beside = -1
    cdef double key, least_order = INFINITY, least = INFINITY, least_beside = INFINITY
    cdef int64_t recent = t.step - guard_steps(t, c)
    cdef Slot *s
    for i in range(c.first, c.first + c.n):
        s = &t.slots[i]
        if s.pin >= t.step:
            continue
        if s.order < least_order and not in_flight(&t.experts[s.expert]):
            least_order, oldest = s.order, i
        if t.policy == POLICY_LRU:
            continue
        key = s.key if s.used <= recent else GUARDED + s.order    # the oldest of these, after all others
        if key < least and not in_flight(&t.experts[s.expert]):
            least, rarest = key, i
        if not s.in_lru and key < least_beside and not in_flight(&t.experts[s.expert]):
            least_beside, beside = key, i
    if t.policy == POLICY_LRU or rarest < 0:
        return oldest
    if not t.slots[rarest].in_lru:
        return rarest
    if c.hits - c.hits_lru - (c.n_behind - e.in_lru) + loan(c) >= 1:
        c.n_departures += 1
        return rarest
    return beside if beside >= 0 else oldest


cdef int64_t guard_steps(Table *t, SlotClass *c) noexcept nogil:
    """Steps for which a used expert is safe from rarity: one token, or as many as fill GUARD_SHARE of the cache."""
    return <int64_t>(t.n_tiers * max(1.0, GUARD_SHARE * c.n / max(1, c.n_uses)))


cdef double loan(SlotClass *c) noexcept nogil:
    """Hits that rarity may lose before it has gained any: as far as its shadow is ahead beyond doubt."""
    return max(0.0, min(MOST_LOAN, c.hits_rare - c.hits_lru - DOUBT * sqrt(<double>c.n_disputed)))


# -- shadows: what either policy alone would hold ------------------------------------------------

cdef void shadow_use(Table *t, TierState *tier, Expert *e) noexcept nogil:
    """Counts a use of `e` by a pass that takes experts from the cache, before it is placed there."""
    cdef SlotClass *c = &t.classes[tier.i_class]
    if t.policy != POLICY_LFU or c.n == 0:
        return
    c.hits += e.slot >= t.n_ring
    c.hits_lru += e.in_lru
    c.hits_rare += e.rare >= 0
    c.n_disputed += e.in_lru != (e.rare >= 0)
    if e.in_lru:             # again, so that experts of one step stand in the order of the plan
        lru_renew(t, c, e)
    else:
        if c.n_lru >= c.n:
            lru_drop(t, c, &t.experts[c.oldest])
        lru_add(t, c, e)
    if e.rare < 0:
        rare_add(t, c, e)


cdef void lru_add(Table *t, SlotClass *c, Expert *e) noexcept nogil:
    cdef int32_t i = <int32_t>(e - t.experts)
    e.older, e.newer = <int32_t>c.newest, -1
    if c.newest >= 0:
        t.experts[c.newest].newer = i
    else:
        c.oldest = i
    c.newest = i
    c.n_lru += 1
    set_in_lru(t, c, e, True)


cdef void lru_drop(Table *t, SlotClass *c, Expert *e) noexcept nogil:
    if e.older >= 0:
        t.experts[e.older].newer = e.newer
    else:
        c.oldest = e.newer
    if e.newer >= 0:
        t.experts[e.newer].older = e.older
    else:
        c.newest = e.older
    c.n_lru -= 1
    set_in_lru(t, c, e, False)


cdef void lru_renew(Table *t, SlotClass *c, Expert *e) noexcept nogil:
    if c.newest != e - t.experts:
        lru_drop(t, c, e)
        lru_add(t, c, e)


cdef void set_in_lru(Table *t, SlotClass *c, Expert *e, bint is_in) noexcept nogil:
    e.in_lru = is_in
    if e.slot >= t.n_ring:
        t.slots[e.slot].in_lru = is_in
    else:
        c.n_behind += 1 if is_in else -1


cdef void rare_add(Table *t, SlotClass *c, Expert *e) noexcept nogil:
    cdef int64_t i, at = c.n_rare, recent = t.step - guard_steps(t, c)
    cdef double key, least = INFINITY
    if at >= c.n:
        at = -1
        for i in range(c.n):
            if c.rare[i].used >= t.step:         # of this very pass
                continue
            key = c.rare[i].key if c.rare[i].used <= recent else GUARDED + c.rare[i].order
            if key < least:
                least, at = key, i
        if at < 0:
            return
        t.experts[c.rare[at].expert].rare = -1
    else:
        c.n_rare += 1
    c.rare[at].expert = e - t.experts
    e.rare = <int32_t>at
    note_rare(c, e)


cdef int shadows_init(Table *t) except -1:
    """Shadows of all classes, empty. The classes' sizes are known."""
    cdef int64_t i
    for i in range(t.n_classes):
        t.classes[i].oldest = t.classes[i].newest = -1
        if t.policy == POLICY_LFU:
            t.classes[i].rare = <Rare *>calloc(max(1, t.classes[i].n), sizeof(Rare))
            if t.classes[i].rare == NULL:
                raise MemoryError
    return 0


cdef void shadows_free(Table *t) noexcept:
    cdef int64_t i
    for i in range(t.n_classes if t.classes != NULL else 0):
        free(t.classes[i].rare)
        t.classes[i].rare = NULL


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


@cython.no_gc      # the collector would take the slots away while readers write into them; no cycle leads through it
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
        self.slab = Slab(ring_bytes + sum(n * size for size, n in counts.items()), in_advance=True)
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
            t.classes[tier.i_class].n_uses += min(model_at.n_expert_used, tier_at.n_expert)
            for b in range(3):
                tier.base[b] = <const char *><uintptr_t>tier_at.banks[b].address
                tier.stride[b] = tier_at.banks[b].tensor.expert_stride
            self._describe(i, tier_at)
            at += tier_at.n_expert
        shadows_init(t)

    def _describe(self, int64_t i, tier_at):
        """Fills in which bytes of which file each slice of the tier's experts is."""
        cdef TierState *tier = &self.t.tiers[i]
        cdef int64_t align = self.readers.alignment, offset, n, begin, end
        cdef Expert *e
        for ie in range(tier.n_expert):
            e = &self.t.experts[tier.first + ie]
            e.slot, e.used, e.pin, e.key, e.rare = -1, -1, -1, -INFINITY, -1
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

    def departures(self):
        """Evictions so far that LRU would not have made."""
        return sum(self.t.classes[i].n_departures for i in range(self.t.n_classes))

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
        shadows_free(&self.t)
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
