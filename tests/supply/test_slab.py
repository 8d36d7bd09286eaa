"""Slab: memory that is there from the start, and whose making can be interrupted."""

import numpy as np

from moeengine.supply.slab import Slab
from tests.interrupt import interrupt_after


def test_zeroed_and_aligned():
    slab = Slab(3_000_000)
    memory = np.frombuffer(slab, np.uint8)
    assert memory.size >= 3_000_000 and memory.ctypes.data % (2 << 20) == 0 and not memory.any()


def test_ctrl_c_ends_the_making_of_a_large_one():
    made = []
    with interrupt_after(0.001):
        made.append(Slab(1 << 29))
    assert not made
