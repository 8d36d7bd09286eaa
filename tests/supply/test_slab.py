"""Slab: zeroed and aligned; its pages come in advance or with their use, and it can be given back meanwhile."""

import gc
import mmap
import os
import time

import numpy as np
import pytest

from moeengine import Engine
from moeengine.supply.slab import Slab
from tests.supply.models import write_model

N = 48 << 20


@pytest.mark.parametrize("in_advance", (False, True))
def test_zeroed_and_aligned(in_advance):
    slab = Slab(3_000_000, in_advance)
    memory = np.frombuffer(slab, np.uint8)
    assert memory.size >= 3_000_000 and memory.ctypes.data % (2 << 20) == 0 and not memory.any()


def can_populate():
    """Whether the system knows MADV_POPULATE_WRITE, tried on a page of its own."""
    with mmap.mmap(-1, mmap.PAGESIZE) as page:
        try:
            page.madvise(23)
        except OSError:
            return False
    return True


def resident_bytes(slab):
    """Bytes of the slab that are in memory, by the process's own map."""
    base, found, inside = np.frombuffer(slab, np.uint8).ctypes.data, 0, False
    with open("/proc/self/smaps") as maps:
        for line in maps:
            if not line[0].isupper():
                first, end = (int(x, 16) for x in line.split(" ", 1)[0].split("-"))
                inside = first < base + slab.n_bytes and base < end
            elif inside and line.startswith("Rss:"):
                found += int(line.split()[1]) * 1024
    return found


def test_pages_come_in_advance_where_asked():
    plain, slab = Slab(N), Slab(N, in_advance=True)
    for _ in range(500):
        if resident_bytes(slab) >= N:
            break
        time.sleep(0.02)
    else:
        assert not can_populate(), "the pages did not come"
        pytest.skip("this system does not make pages in advance: Linux before 5.14")
    assert resident_bytes(plain) < N


def test_given_back_while_pages_come_and_in_a_forked_child():
    for _ in range(20):
        Slab(1 << 28, in_advance=True).close()
    slab = Slab(1 << 28, in_advance=True)
    child = os.fork()
    if child == 0:
        slab.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    slab.close()
    slab.close()


def test_the_collector_leaves_what_others_write_into(tmp_path):
    """In a cycle with an engine, it would give the memory back before the threads that write into it have ended."""
    assert not gc.is_tracked(Slab(N))
    with Engine(write_model(tmp_path), n_ctx=64, moe_mode="stream", cache_mb=1, force_cache=True) as engine:
        assert not gc.is_tracked(engine._runtime.supply.table)
