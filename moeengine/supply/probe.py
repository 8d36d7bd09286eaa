"""A look at the disk under a model file: whether a sweep had better read past the page cache or through it."""

import mmap
import os
import random
import time

import numpy as np

from moeengine.supply.dense import EXPERTS
from moeengine.supply.readers import SMALLEST_ALIGNMENT, direct_alignment, name_of_open

SAMPLES_A_BANK, SAMPLE_BYTES = 8, 64 << 10
N_SLICES = 8  # a method; spread over the file
MOST_S = 0.015  # a method; the whole probe stays below 50 ms
RESIDENT_SHARE = 0.75  # of the experts in the page cache: nothing is left to read past it
ADVICE_COST = 1.25  # advice burns 3 to 5 times the CPU of a ring, so it has to be faster by this


def faster_sweep(model_at, share, most_s=MOST_S):
    """Which sweep method suits the disk of a model.

    Some slices that are not in the page cache are read for a few milliseconds in each way; which ones is drawn, because
    half of them are in the page cache afterwards.

    Parameters
    ----------
    model_at : ModelAt
    share : float       of the experts, that is in the page cache: see `page_cache_share`
    most_s : float      seconds a method

    Returns
    -------
    method : {"direct", "advice"}
    why : str           one clause for a person
    """
    slices = _sample(model_at, 2 * N_SLICES)
    alignment = max((direct_alignment(m.path) for m in model_at.maps), default=0)
    if not slices or not all(direct_alignment(m.path) for m in model_at.maps):
        return "advice", "the file system has no direct reads"
    cold = [s for s in slices if not _is_resident(model_at.maps[s[0]], *s[1:])]
    if share >= RESIDENT_SHARE or len(cold) < 2:
        return "advice", "the experts are in the page cache"
    direct = _rate(_direct, model_at.maps, cold[1::2], most_s, max(alignment, SMALLEST_ALIGNMENT))
    advice = _rate(_advised, model_at.maps, cold[0::2], most_s, 0)
    method = "advice" if advice > ADVICE_COST * direct else "direct"
    return method, f"probe: {direct / 1e9:.2f} GB/s past the page cache, {advice / 1e9:.2f} through it"


def page_cache_share(model_file):
    """Share of the experts' pages that are in the page cache, 0 to 1, by a sample of each bank; 1 without experts."""
    resident = total = 0
    for info in model_file.tensors.values():
        if not EXPERTS.search(info.name):
            continue
        n = min(info.n_bytes, SAMPLE_BYTES)
        for i in range(SAMPLES_A_BANK):
            at = info.offset + (info.n_bytes - n) * i // max(1, SAMPLES_A_BANK - 1)
            found = model_file.maps[info.shard].resident_pages(at, n)
            resident, total = resident + found[0], total + found[1]
    return resident / total if total else 1.0


def _sample(model_at, n):
    """n slices (file, offset, bytes) spread evenly over the tiers and banks, of experts drawn at random."""
    tiers = [tier for layer in model_at.layers for tier in layer.tiers]
    found = []
    for i in range(n if tiers else 0):
        tier = tiers[i * len(tiers) // n]
        banks = [bank for bank in tier.banks if bank.tensor.expert_bytes]
        found.append(banks[i % len(banks)].tensor.slice(random.randrange(tier.n_expert)))
    return list(dict.fromkeys(found))


def _is_resident(mapped, offset, n_bytes):
    resident, total = mapped.resident_pages(offset, n_bytes)
    return 2 * resident > total


def _rate(read, maps, slices, most_s, alignment):
    """Bytes a second of `read` over the slices, as far as the time reaches."""
    start = time.perf_counter()
    done = 0
    for n in read(maps, slices, alignment):
        done += n
        if time.perf_counter() - start > most_s:
            break
    return done / max(time.perf_counter() - start, 1e-9)


def _advised(maps, slices, _):
    """Announce two slices ahead and touch each page, as the sweep by advice does; yields bytes."""
    for i, (shard, offset, n_bytes) in enumerate(slices):
        for ahead in slices[0:3] if i == 0 else slices[i + 2 : i + 3]:
            maps[ahead[0]].advise(ahead[1], ahead[2], "willneed")
        int(np.frombuffer(maps[shard], np.uint8, n_bytes, offset)[::SMALLEST_ALIGNMENT].sum())
        yield n_bytes


def _direct(maps, slices, alignment):
    """Read each slice past the page cache into one buffer on huge pages, as the ring does; yields bytes."""
    most = max(n for _, _, n in slices) + 2 * alignment
    room = mmap.mmap(-1, most + (4 << 20))
    room.madvise(mmap.MADV_HUGEPAGE)
    view = memoryview(room)
    fds = {}
    try:
        for shard, offset, n_bytes in slices:
            if shard not in fds:
                fds[shard] = os.open(name_of_open(maps[shard]), os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
            first = offset // alignment * alignment
            length = -(-(offset + n_bytes - first) // alignment) * alignment
            if os.preadv(fds[shard], [view[:length]], first) < offset + n_bytes - first:
                return
            yield n_bytes
    except OSError:
        return
    finally:
        for fd in fds.values():
            os.close(fd)
