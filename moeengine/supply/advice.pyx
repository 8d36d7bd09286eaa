"""Expert bytes stay in the page cache; the system is told ahead what will be needed.

Passes of few tokens: the slices that the router chose are brought in before the layer computes
(`prefetch`). Passes of many: each expert is announced some experts ahead of its use and, where asked,
dropped some experts behind (`sweep`). Advice about ranges is rounded outward for reading and inward for
dropping, so that a neighbour's bytes are never dropped.
"""
cimport cython
from libc.stdint cimport int32_t, int64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset
from posix.mman cimport MADV_DONTNEED, MADV_RANDOM, MADV_WILLNEED, madvise, mincore

from moeengine.kernels.mul_mat_id cimport ExpertHooks, ExpertPlan
from moeengine.supply.base cimport DECODE, PREFILL, ExpertSupply, NodeCounts, PhaseCounts, TierHooks, now_ns
from moeengine.supply.readers cimport (
    MOE_SLICE_FAILED, Readers, moe_readers, moe_slice, moe_slice_get, readers_submit, slice_wait,
)

cdef extern from "<fcntl.h>" nogil:
    int posix_fadvise(int fd, long offset, long length, int advice)
    int POSIX_FADV_WILLNEED

cdef enum:
    PAGE = 4096
    MERGE_GAP = 65536        # bytes between two slices that one request bridges
    MAX_PAGES = 4096         # asked of mincore at once


cdef struct AdvisedBank:
    AdvisedTier *tier
    NodeCounts *node
    const char *base         # of expert 0 in the mapping
    int64_t stride, n_bytes  # of an expert
    int32_t file
    int fd
    int64_t offset           # of expert 0 in the file

cdef struct AdvisedTier:
    Advised *a
    NodeCounts *nodes        # GATE, UP, DOWN
    AdvisedBank bank[3]
    int64_t i
    bint sweeping

cdef struct Counts:
    int64_t n_advice, n_refused, bytes_advised, bytes_dropped, n_ranges, n_resident, n_slices, n_errors

cdef struct Range:
    int32_t file
    int fd
    int64_t offset, n

cdef struct Advised:
    PhaseCounts *phases
    int phase
    moe_readers *pool        # NULL: the computing thread advises
    int64_t prefetch_up_to   # tokens of a pass; 0: never
    int64_t sweep_from
    bint drop_behind
    Range *ranges            # scratch, like the next two: one a selected slice
    moe_slice *reads
    moe_slice **batch
    Counts n


cdef void advise_slice(Advised *a, NodeCounts *node, const char *at, int64_t n, int advice) noexcept nogil:
    cdef uintptr_t first = <uintptr_t>at, last = first + n
    if n == 0:               # the gate of experts that have none
        return
    if advice == MADV_DONTNEED:
        first, last = (first + PAGE - 1) // PAGE * PAGE, last // PAGE * PAGE
    else:
        first = first // PAGE * PAGE
    if last <= first:
        return
    a.n.n_advice += 1
    if madvise(<void *>first, last - first, advice) != 0:
        a.n.n_refused += 1
    elif advice == MADV_DONTNEED:
        a.n.bytes_dropped += last - first
        node.bytes_dropped += last - first
    else:
        a.n.bytes_advised += last - first
        node.bytes_advised += last - first


cdef void advise_timed(AdvisedBank *bank, int32_t ie, int advice) noexcept nogil:
    cdef int64_t start = now_ns()
    advise_slice(bank.tier.a, bank.node, bank.base + ie * bank.stride, bank.n_bytes, advice)
    start = now_ns() - start
    bank.tier.a.phases[bank.tier.a.phase].upkeep_ns += start
    bank.node.wait_ns += start


cdef void advice_ahead(void *arg, int32_t ie) noexcept nogil:
    cdef AdvisedBank *bank = <AdvisedBank *>arg
    if bank.tier.sweeping:
        advise_timed(bank, ie, MADV_WILLNEED)


cdef void advice_behind(void *arg, int32_t ie) noexcept nogil:
    cdef AdvisedBank *bank = <AdvisedBank *>arg
    if bank.tier.sweeping and bank.tier.a.drop_behind:
        advise_timed(bank, ie, MADV_DONTNEED)


cdef bint is_resident(const char *at, int64_t n) noexcept nogil:
    cdef unsigned char flags[MAX_PAGES]
    cdef uintptr_t first = <uintptr_t>at // PAGE * PAGE, last = <uintptr_t>at + n
    cdef int64_t n_pages, i
    while first < last:
        n_pages = min(<int64_t>MAX_PAGES, <int64_t>(last - first + PAGE - 1) // PAGE)
        if mincore(<void *>first, n_pages * PAGE, flags) != 0:
            return False
        for i in range(n_pages):
            if not flags[i] & 1:
                return False
        first += n_pages * PAGE
    return True


cdef void advice_begin(void *arg, const ExpertPlan *plan, int64_t n_tokens, int32_t *visit) noexcept nogil:
    cdef AdvisedTier *tier = <AdvisedTier *>arg
    cdef Advised *a = tier.a
    cdef int64_t start = now_ns()
    cdef PhaseCounts *c
    a.phase = DECODE if n_tokens == 1 else PREFILL
    c = &a.phases[a.phase]
    c.n_passes += 1
    if tier.i == 0:
        c.n_tokens += n_tokens
    tier.sweeping = n_tokens >= a.sweep_from
    if n_tokens <= a.prefetch_up_to:
        tier.sweeping = False
        prefetch(tier, plan, c)
    c.upkeep_ns += now_ns() - start


cdef void prefetch(AdvisedTier *tier, const ExpertPlan *plan, PhaseCounts *c) noexcept nogil:
    """Brings the chosen slices that are not resident into the page cache, near ones in one request."""
    cdef Advised *a = tier.a
    cdef AdvisedBank *bank
    cdef Range *r
    cdef const char *at
    cdef int64_t i, j, n = 0, offset, n_parts = 0
    cdef int b
    for b in range(3):
        bank = &tier.bank[b]
        if bank.n_bytes == 0:
            continue
        n_parts += 1
        for i in range(plan.n_used):
            at = bank.base + plan.expert[i] * bank.stride
            a.n.n_slices += 1
            if is_resident(at, bank.n_bytes):
                a.n.n_resident += 1
                continue
            offset = bank.offset + plan.expert[i] * bank.stride
            c.bytes_wanted += bank.n_bytes
            bank.node.read_bytes += bank.n_bytes
            j = n       # three ascending runs: sorted in from behind
            while j > 0 and (a.ranges[j - 1].file > bank.file
                             or a.ranges[j - 1].file == bank.file and a.ranges[j - 1].offset > offset):
                a.ranges[j] = a.ranges[j - 1]
                j -= 1
            a.ranges[j].file, a.ranges[j].fd = bank.file, bank.fd
            a.ranges[j].offset, a.ranges[j].n = offset, bank.n_bytes
            n += 1
    c.n_misses += (n + n_parts - 1) // n_parts
    c.n_hits += plan.n_used - (n + n_parts - 1) // n_parts
    n = merge(a.ranges, n)
    a.n.n_ranges += n
    for i in range(n):
        r = &a.ranges[i]
        c.read_bytes += r.n
        a.reads[i].file, a.reads[i].offset, a.reads[i].need = r.file, r.offset, r.n
        a.batch[i] = &a.reads[i]
        if a.pool == NULL and posix_fadvise(r.fd, r.offset, r.n, POSIX_FADV_WILLNEED) != 0:
            a.n.n_errors += 1
    if a.pool == NULL:
        return
    readers_submit(a.pool, a.batch, n, True)
    for i in range(n):
        if slice_wait(a.pool, &a.reads[i]) == NULL and moe_slice_get(&a.reads[i]) == MOE_SLICE_FAILED:
            a.n.n_errors += 1


cdef int64_t merge(Range *r, int64_t n) noexcept nogil:
    """Joins ranges of one file that lie close together; returns how many are left."""
    cdef int64_t i, k = 0
    for i in range(1, n):
        if r[i].file == r[k].file and r[i].offset - (r[k].offset + r[k].n) <= MERGE_GAP:
            r[k].n = max(r[k].n, r[i].offset + r[i].n - r[k].offset)
        else:
            k += 1
            r[k] = r[i]
    return k + 1 if n else 0


@cython.no_gc_clear      # the readers must have ended before the ranges they look at go
cdef class AdvisedSupply(ExpertSupply):
    """The page cache, told what comes.

    Parameters
    ----------
    sweep_from : int         passes of at least so many tokens announce experts ahead
    n_ahead, n_behind : int  experts
    drop_behind : bool       drop what was used from this process's map
    prefetch_up_to : int     passes of at most so many tokens bring the chosen slices in first; 0: none
    method : {"advice", "parallel-advice", "read"}     how: advice by the computing thread, by the
                             readers, or reads into scratch by the readers
    io_threads : int
    """
    cdef Advised a
    cdef AdvisedTier *tiers
    cdef int64_t n_tiers
    cdef readonly Readers readers
    cdef object options, maps

    def __cinit__(self):
        memset(&self.a, 0, sizeof(Advised))
        self.tiers = NULL

    def __init__(self, *, sweep_from, n_ahead=2, n_behind=2, drop_behind=True, prefetch_up_to=0, method="advice",
                 io_threads=4):
        self.a.sweep_from, self.a.drop_behind, self.a.prefetch_up_to = sweep_from, drop_behind, prefetch_up_to
        self.options = dict(n_ahead=n_ahead, n_behind=n_behind, method=method, io_threads=io_threads)

    def bind(self, model_at):
        cdef AdvisedTier *tier
        cdef int64_t i = 0
        ExpertSupply.bind(self, model_at)
        self.maps = model_at.maps
        self.a.phases = self.phase
        tiers_at = [tier_at for layer in model_at.layers for tier_at in layer.tiers]
        most = 3 * max([1] + [tier_at.n_expert for tier_at in tiers_at])
        self.n_tiers = len(tiers_at)
        self.tiers = <AdvisedTier *>calloc(max(1, self.n_tiers), sizeof(AdvisedTier))
        self.a.ranges = <Range *>calloc(most, sizeof(Range))
        self.a.reads = <moe_slice *>calloc(most, sizeof(moe_slice))
        self.a.batch = <moe_slice **>calloc(most, sizeof(moe_slice *))
        if not (self.tiers and self.a.ranges and self.a.reads and self.a.batch):
            raise MemoryError
        for i, tier_at in enumerate(tiers_at):
            tier = &self.tiers[i]
            tier.a, tier.i, tier.nodes = &self.a, i, &self.nodes[3 * i]
            for b, bank in enumerate(tier_at.banks):
                tier.bank[b].tier, tier.bank[b].node = tier, &tier.nodes[b]
                tier.bank[b].base = <const char *><uintptr_t>bank.address
                tier.bank[b].file, tier.bank[b].offset, tier.bank[b].n_bytes = bank.tensor.slice(0)
                tier.bank[b].stride = bank.tensor.expert_stride
                tier.bank[b].fd = self.maps[bank.tensor.shard].fd
                if self.a.prefetch_up_to:      # a fault must not bring in megabytes around it
                    advise_slice(&self.a, tier.bank[b].node, tier.bank[b].base, (tier_at.n_expert - 1) * tier.bank[b].stride
                                 + tier.bank[b].n_bytes, MADV_RANDOM)
        if self.a.prefetch_up_to and self.options["method"] != "advice":
            method = "warm" if self.options["method"] == "read" else "advise"
            self.readers = Readers(self.maps, self.options["io_threads"], method=method)
            self.a.pool = self.readers.pool
        memset(self.nodes, 0, self.n_nodes * sizeof(NodeCounts))      # advice at load is of no pass

    cdef int hooks(self, int64_t i_moe, int64_t i_tier, TierHooks *tier, ExpertHooks *banks) except -1:
        cdef int64_t i = sum(len(layer.tiers) for layer in self.layers[:i_moe]) + i_tier
        tier.arg, tier.begin = &self.tiers[i], advice_begin
        for b in range(3):
            banks[b].arg = &self.tiers[i].bank[b]
            banks[b].n_ahead, banks[b].n_behind = self.options["n_ahead"], self.options["n_behind"]
            banks[b].advise, banks[b].release = advice_ahead, advice_behind
        return 0

    def stats(self):
        n = self.a.n
        found = {
            "n_advice": n.n_advice, "n_advice_refused": n.n_refused, "bytes_advised": n.bytes_advised,
            "bytes_dropped": n.bytes_dropped, "n_ranges": n.n_ranges, "n_slices": n.n_slices,
            "n_slices_resident": n.n_resident, "n_errors": n.n_errors, "method": self.options["method"],
        }
        if self.readers is not None:
            found |= {f"reader_{k}": v for k, v in self.readers.counts().items()}
        return found

    def close(self):
        self.a.pool = NULL
        if self.readers is not None:
            self.readers.close()

    def __dealloc__(self):
        self.close()
        free(self.tiers)
        free(self.a.ranges)
        free(self.a.reads)
        free(self.a.batch)
