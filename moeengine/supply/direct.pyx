"""Expert bytes read past the page cache into slots: a cache for decode, a ring for sweeps.

A pass of few tokens takes experts from the cache; missing ones are read into it while those at hand are
computed. A pass of many tokens sweeps: experts of the cache are computed in place, the others stream in
visiting order through the ring, a few ahead of the computation, and the cache keeps what it has; while it
has room, it takes the most used experts of each layer.
"""
cimport cython
from libc.errno cimport ENOMEM
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

import os

from moeengine.errors import ConfigError, SupplyError

from moeengine.kernels.mul_mat_id cimport ExpertHooks, ExpertPlan
from moeengine.supply.base cimport DECODE, PREFILL, ExpertSupply, PhaseCounts, TierHooks, now_ns
from moeengine.supply.dense_ahead cimport announce_dense, dense_ahead_free, dense_ahead_init
from moeengine.supply.expert_table cimport (
    Expert, ExpertTable, Table, TierState, free_ring_slot, free_slot, is_broken, pin, place, reclaim_ring, shadow_use,
    slot_for, touch, vacate,
)
from moeengine.supply.readers cimport (
    MOE_SLICE_QUEUED, MOE_SLICE_READY, Readers, moe_slice, moe_slice_fail, moe_slice_get, readers_counts,
    moe_slice_take_wait, readers_hurry, readers_submit, slice_wait,
)

from moeengine.supply.expert_table import bytes_of_token, sizes_of

cdef enum:
    DOWN = 2
    HINTS_SEEN = 512     # predictions after which the older ones count half
    HINT_ANYWAY = 16     # one of so many predictions is followed where they do not pay


cdef inline Expert *expert_of(Table *t, TierState *tier, int32_t ie) noexcept nogil:
    return &t.experts[tier.first + ie]


cdef const char *direct_ready(void *arg, int32_t ie) noexcept nogil:
    cdef BankState *bank = <BankState *>arg
    if bank.tier.plain:
        return bank.tier.base[bank.b] + ie * bank.tier.stride[bank.b]
    cdef moe_slice *s = &expert_of(bank.d.t, bank.tier, ie).slice[bank.b]
    cdef const char *at = slice_wait(bank.d.t.pool, s)
    if at == NULL:       # the slot may be gone by the time somebody asks why
        bank.d.failed_expert, bank.d.failed_bank, bank.d.failed_errno = bank.tier.first + ie, bank.b, s.err
    return at


cdef const char *direct_peek(void *arg, int32_t ie) noexcept nogil:
    cdef BankState *bank = <BankState *>arg
    cdef moe_slice *s
    if bank.tier.plain:
        return bank.tier.base[bank.b] + ie * bank.tier.stride[bank.b]
    s = &expert_of(bank.d.t, bank.tier, ie).slice[bank.b]
    return s.to + s.skip if moe_slice_get(s) == MOE_SLICE_READY else NULL


cdef bint direct_is_cold(void *arg, int32_t ie) noexcept nogil:
    cdef TierArg *a = <TierArg *>arg
    return expert_of(a.d.t, a.tier, ie).slot < 0


cdef void direct_begin(void *arg, const ExpertPlan *plan, int64_t n_tokens, int32_t *visit) noexcept nogil:
    cdef Direct *d = (<TierArg *>arg).d
    cdef TierState *tier = (<TierArg *>arg).tier
    cdef Table *t = d.t
    cdef int64_t start = now_ns(), i
    cdef PhaseCounts *c
    cdef Expert *e
    count_reads(d)
    d.phase = DECODE if n_tokens == 1 else PREFILL
    c = &d.phases[d.phase]
    t.step += 1
    if tier.i == 0:
        t.clock += n_tokens
        c.n_tokens += n_tokens
    c.n_passes += 1
    tier.plain = n_tokens < d.plain_below
    announce_dense(&d.dense, tier.i)
    if not tier.plain:
        for i in range(plan.n_used):
            e = expert_of(t, tier, plan.expert[i])
            if e.slot >= 0 and is_broken(e):
                vacate(t, e.slot)
            d.n_hints_used += e.hinted
            d.recent_used += e.hinted
            e.hinted = False
            touch(t, e, plan.start[i + 1] - plan.start[i], n_tokens)
            if e.slot >= t.n_ring:
                c.n_hits += 1
            else:
                c.n_misses += 1
                c.bytes_wanted += e.slice[0].need + e.slice[1].need + e.slice[2].need
        reclaim_ring(t)
        tier.sweeping = (n_tokens >= d.sweep_from or 2 * plan.n_used > t.classes[tier.i_class].n)
        if tier.sweeping:
            choose_keepers(t, tier, plan)
            d.at, d.plan, d.todo = tier, plan, 0
            sweep_on(d)
        else:
            fetch_missing(d, tier, plan, visit)
    c.upkeep_ns += now_ns() - start


cdef void book(Direct *d, TierState *tier, Expert *e) noexcept nogil:
    """Counts what is about to be asked of the readers to the tensors it is part of."""
    cdef int b
    for b in range(3):
        d.nodes[3 * tier.i + b].read_bytes += e.slice[b].need - e.slice[b].skip


cdef void fetch_missing(Direct *d, TierState *tier, const ExpertPlan *plan, int32_t *visit) noexcept nogil:
    """Gives every missing expert a cache slot and asks for its bytes; what is there is computed first."""
    cdef Table *t = d.t
    cdef int64_t i, n = 0, n_missing = 0, n_there = 0, slot
    cdef int b
    cdef Expert *e
    for i in range(plan.n_used):
        e = expert_of(t, tier, plan.expert[i])
        if e.slot >= 0:      # or on its way
            for b in range(3):
                if moe_slice_get(&e.slice[b]) == MOE_SLICE_QUEUED:
                    readers_hurry(t.pool, &e.slice[b])
            if visit != NULL:
                visit[n_there] = <int32_t>i
                n_there += 1
    for i in range(plan.n_used):
        e = expert_of(t, tier, plan.expert[i])
        shadow_use(t, tier, e)
        if e.slot >= 0:
            continue
        if visit != NULL:
            visit[n_there + n_missing] = <int32_t>i
        n_missing += 1
        slot = slot_for(t, tier, e, False)
        if slot < 0:
            refuse(e)
            continue
        place(t, tier, e, slot)
        book(d, tier, e)
        for b in range(DOWN):
            t.batch[n] = &e.slice[b]
            n += 1
        e.keep = True        # of this round: its `down` is still to be asked for
    for i in range(plan.n_used):
        e = expert_of(t, tier, plan.expert[i])
        if e.keep:
            e.keep = False
            t.batch[n] = &e.slice[DOWN]
            n += 1
    readers_submit(t.pool, t.batch, n, True)


cdef void refuse(Expert *e) noexcept nogil:
    """No slot is to be had, which a cache of sufficient size rules out: an error instead of a wait for ever."""
    cdef int b
    for b in range(3):
        moe_slice_fail(&e.slice[b], ENOMEM)


cdef void choose_keepers(Table *t, TierState *tier, const ExpertPlan *plan) noexcept nogil:
    """Marks the most used experts of the tier that the cache will take, while it has room."""
    cdef int64_t i, k, best, room, n_best
    cdef Expert *e
    room = t.classes[tier.i_class].n * tier.n_expert // t.classes[tier.i_class].n_experts - tier.n_resident
    room = min(room, t.classes[tier.i_class].n_free)
    for i in range(plan.n_used):
        expert_of(t, tier, plan.expert[i]).keep = False
    for k in range(min(room, plan.n_used)):
        best, n_best = -1, 0
        for i in range(plan.n_used):
            e = expert_of(t, tier, plan.expert[i])
            if e.slot < 0 and not e.keep and plan.start[i + 1] - plan.start[i] > n_best:
                best, n_best = i, plan.start[i + 1] - plan.start[i]
        if best < 0:
            return
        expert_of(t, tier, plan.expert[best]).keep = True


cdef void sweep_on(Direct *d) noexcept nogil:
    """Asks for the next experts of the sweep, as many as there are free slots."""
    cdef Table *t = d.t
    cdef int64_t slot, n = 0
    cdef int b
    cdef Expert *e
    while d.todo < d.plan.n_used:
        e = expert_of(t, d.at, d.plan.expert[d.todo])
        if e.slot < 0:
            slot = free_slot(t, d.at) if e.keep else -1
            e.keep = False
            if slot < 0:
                slot = free_ring_slot(t)
            if slot < 0:
                break
            place(t, d.at, e, slot)
            book(d, d.at, e)
            for b in range(3):
                t.batch[n] = &e.slice[b]
                n += 1
        else:
            for b in range(3):
                readers_hurry(t.pool, &e.slice[b])
        d.todo += 1
    readers_submit(t.pool, t.batch, n, True)


cdef void direct_release(void *arg, int32_t ie) noexcept nogil:
    """After a sweep has used an expert: its place in the ring is free for the next ones."""
    cdef BankState *bank = <BankState *>arg
    cdef Direct *d = bank.d
    cdef Expert *e
    cdef int64_t start
    if bank.tier.plain or not bank.tier.sweeping:
        return
    start = now_ns()
    e = expert_of(d.t, bank.tier, ie)
    if 0 <= e.slot < d.t.n_ring:
        vacate(d.t, e.slot)
        sweep_on(d)
    d.phases[d.phase].upkeep_ns += now_ns() - start


cdef void direct_end(void *arg) noexcept nogil:
    """A sweep that used nearly all experts begins the next tier's before its router has spoken."""
    cdef Direct *d = (<TierArg *>arg).d
    cdef TierState *tier = (<TierArg *>arg).tier
    cdef Table *t = d.t
    cdef TierState *following = tier + 1
    cdef Expert *e
    cdef int64_t i, n = 0, n_slots = t.n_ring // 2, slot
    cdef int b
    if tier.plain or not tier.sweeping or tier.i + 1 == t.n_tiers or 10 * d.plan.n_used < 9 * tier.n_expert:
        return
    for i in range(following.n_expert):
        if n >= 3 * n_slots:
            break
        e = expert_of(t, following, <int32_t>i)
        if e.slot >= 0:
            continue
        slot = free_ring_slot(t)
        if slot < 0:
            break
        pin(t, e, t.step)
        place(t, following, e, slot)
        book(d, following, e)
        for b in range(3):
            t.batch[n] = &e.slice[b]
            n += 1
    readers_submit(t.pool, t.batch, n, False)


cdef bint hints_pay(Direct *d) noexcept nogil:
    """Whether to follow a prediction: always while most came true, else now and then, to see whether they do again."""
    if d.recent_hints >= HINTS_SEEN:
        d.recent_hints //= 2
        d.recent_used //= 2
    if d.recent_hints < HINTS_SEEN // 4 or 2 * d.recent_used >= d.recent_hints:
        return True
    d.n_hints_withheld += 1
    return d.n_hints_withheld % HINT_ANYWAY == 0


cdef void direct_hint(void *arg, const int32_t *ids, int64_t n) noexcept nogil:
    """Reads predicted experts into the cache, after all that is wanted for certain."""
    cdef Direct *d = (<TierArg *>arg).d
    cdef TierState *tier = (<TierArg *>arg).tier
    cdef Table *t = d.t
    cdef Expert *e
    cdef int64_t i, n_batch = 0, slot, until = t.step + d.hint_steps
    cdef int b
    if 8 * n > t.classes[tier.i_class].n or not hints_pay(d):
        return
    for i in range(n):
        e = expert_of(t, tier, ids[i])
        if e.slot >= 0:
            pin(t, e, until)
            continue
        slot = slot_for(t, tier, e, True)
        if slot < 0:
            break
        pin(t, e, until)
        place(t, tier, e, slot)
        book(d, tier, e)
        d.n_hints += 1
        d.recent_hints += 1
        e.hinted = True
        for b in range(3):
            t.batch[n_batch] = &e.slice[b]
            n_batch += 1
    readers_submit(t.pool, t.batch, n_batch, False)


cdef void count_reads(Direct *d) noexcept nogil:
    """Books what readers and waiters did since the last call to the phase at work."""
    cdef moe_reader_counts now
    cdef PhaseCounts *c = &d.phases[d.phase]
    readers_counts(d.t.pool, &now)
    c.wait_ns += now.wait_ns - d.seen.wait_ns
    c.read_bytes += now.read_bytes - d.seen.read_bytes
    d.seen = now


@cython.no_gc_clear      # the readers must have ended before the slots they write into go
cdef class DirectSupply(ExpertSupply):
    """Expert bytes by reads past the page cache; see the module's first lines.

    Parameters
    ----------
    io_threads : int        readers
    cache_bytes : int       of the cache; 0: none, every expert goes through the ring each time
    policy : {"lru", "lfu"}
    n_ring : int            slots of the ring, 2 or more
    plain_below : int       passes of fewer tokens read from the mapping, as in mmap mode
    sweep_from : int        passes of at least so many tokens sweep
    forced : bool           accept a cache that one token alone overturns
    """

    def __cinit__(self):
        memset(&self.d, 0, sizeof(Direct))
        self.banks = NULL
        self.tier_args = NULL

    def __init__(self, *, io_threads, cache_bytes, policy="lfu", n_ring=16, plain_below=0, sweep_from=32,
                 forced=False, direct=True):
        self.settings = dict(io_threads=io_threads, cache_bytes=cache_bytes, policy=policy, n_ring=n_ring,
                             forced=forced, direct=direct)
        self.d.plain_below, self.d.sweep_from = plain_below, sweep_from
        self.d.failed_expert, self.d.hint_steps = -1, 8    # 4 layers ahead, some with two tiers

    def bind(self, model_at):
        cdef int64_t i, b
        s = self.settings
        ExpertSupply.bind(self, model_at)
        self.paths = [m.path for m in model_at.maps]
        self.readers = Readers(model_at.maps, s["io_threads"], method="direct" if s["direct"] else "buffered")
        sizes = sizes_of(model_at, self.readers.alignment)
        least = bytes_of_token(sizes, model_at.n_expert_used)
        if 0 < s["cache_bytes"] < least and not s["forced"]:
            raise ConfigError(
                f"cache_mb: found {s['cache_bytes'] / 1e6:.0f}, expected 0 or at least {least / 1e6:.0f}: a smaller cache "
                "is overturned by every token and never hits"
            )
        self.table = ExpertTable(model_at, self.readers, cache_bytes=s["cache_bytes"], n_ring=s["n_ring"],
                                 policy=s["policy"])
        self.d.t, self.d.phases, self.d.nodes = &self.table.t, self.phase, self.nodes
        self.banks = <BankState *>calloc(3 * max(1, len(sizes)), sizeof(BankState))
        self.tier_args = <TierArg *>calloc(max(1, len(sizes)), sizeof(TierArg))
        if self.banks == NULL or self.tier_args == NULL:
            raise MemoryError
        if s["direct"] and self.d.plain_below == 0:
            dense_ahead_init(&self.d.dense, model_at, [il for il, _, _ in sizes])
        for i in range(len(sizes)):
            self.tier_args[i].d, self.tier_args[i].tier = &self.d, &self.table.t.tiers[i]
            for b in range(3):
                self.banks[3 * i + b].d = &self.d
                self.banks[3 * i + b].tier, self.banks[3 * i + b].b = &self.table.t.tiers[i], b

    cdef int hooks(self, int64_t i_moe, int64_t i_tier, TierHooks *tier, ExpertHooks *banks) except -1:
        cdef int64_t i = sum(len(layer.tiers) for layer in self.layers[:i_moe]) + i_tier
        tier.arg = &self.tier_args[i]
        tier.max_experts = max(1, self.table.t.n_ring // 2)
        tier.begin, tier.end = direct_begin, direct_end
        if self.table.n_cache_slots:
            tier.hint, tier.is_cold = direct_hint, direct_is_cold
        for b in range(3):
            banks[b].arg = &self.banks[3 * i + b]
            banks[b].ready, banks[b].peek = direct_ready, direct_peek
        banks[DOWN].release = direct_release
        return 0

    cdef void count_nodes(self) noexcept:
        cdef TierState *tier
        cdef int64_t i, ie
        cdef int b
        for i in range(self.d.t.n_tiers):
            tier = &self.d.t.tiers[i]
            for ie in range(tier.n_expert):
                for b in range(3):
                    self.nodes[3 * i + b].wait_ns += moe_slice_take_wait(&self.d.t.experts[tier.first + ie].slice[b])

    def reads_mapping(self):
        return self.d.plain_below > 0

    def mapping_released(self):
        cdef int64_t i
        dense_ahead_free(&self.d.dense)
        for i in range(self.d.t.n_tiers):
            memset(self.d.t.tiers[i].base, 0, sizeof(self.d.t.tiers[i].base))
        self.readers.reopen()

    def failure(self, il, ie):
        cdef moe_slice *s
        if self.d.failed_expert < 0:
            return ""
        s = &self.d.t.experts[self.d.failed_expert].slice[self.d.failed_bank]
        code, self.d.failed_expert = self.d.failed_errno, -1
        what = (f"cannot read them: {os.strerror(code)}" if code else
                "the file ends before; was it changed while in use?")
        return (f"{self.paths[s.file]}: {s.need - s.skip} bytes at {s.offset + s.skip} "
                f"({('gate', 'up', 'down')[self.d.failed_bank]}): {what}")

    def warm(self, experts):
        """Read experts into the cache, most wanted first, until it is full; returns how many.

        experts : list of (il, ie)     ids count through the layer's tiers; unknown ones are left out

        Raises
        ------
        SupplyError    a slice cannot be read
        """
        cdef Table *t = self.d.t
        cdef TierState *tier
        cdef Expert *e
        cdef int64_t i, slot, n = 0
        cdef int b
        for il, ie in experts:
            for i in range(t.n_tiers):
                tier = &t.tiers[i]
                if tier.il != il:
                    continue
                if ie >= tier.n_expert:
                    ie -= tier.n_expert
                    continue
                e = &t.experts[tier.first + ie]
                slot = free_slot(t, tier) if ie >= 0 and e.slot < 0 else -1
                if slot < 0:
                    break
                place(t, tier, e, slot)
                for b in range(3):
                    t.batch[b] = &e.slice[b]
                with nogil:
                    readers_submit(t.pool, t.batch, 3, True)
                    for b in range(3):
                        slice_wait(t.pool, &e.slice[b])
                if is_broken(e):
                    vacate(t, slot)
                    raise SupplyError(f"{self.paths[e.slice[0].file]}: layer {il}, expert {ie}: cannot be read")
                n += 1
                break
        return n

    def resident_bytes(self):
        return self.table.n_bytes if self.table is not None else 0

    def phases(self):
        if self.readers is not None and self.readers.pool != NULL:
            count_reads(&self.d)
        return ExpertSupply.phases(self)

    def stats(self):
        t = self.table
        return {
            "direct": self.readers.is_direct, "alignment": self.readers.alignment,
            "io_threads": self.readers.n_readers, "cache_policy": self.settings["policy"],
            "cache_slots": t.n_cache_slots, "cache_used": t.residents(), "ring_slots": t.t.n_ring,
            "slab_bytes": t.n_bytes, "n_evicted": t.t.n_evicted,
            "n_dense_announced": self.d.dense.n_announced,
            "n_evicted_by_rarity": t.departures(), "n_predicted": self.d.n_hints,
            "n_predicted_used": self.d.n_hints_used, "n_predictions_withheld": self.d.n_hints_withheld,
            **{f"reader_{k}": v for k, v in self.readers.counts().items()},
        }

    def close(self):
        if self.readers is not None:
            self.readers.close()
        if self.table is not None:
            self.table.close()

    def __dealloc__(self):
        self.close()
        dense_ahead_free(&self.d.dense)
        free(self.banks)
        free(self.tier_args)
