"""Running a test once for every instruction set that this machine has."""

from contextlib import contextmanager

import numpy as np

from moeengine import kernels

ISAS = kernels.isa()["available"] + kernels.isa()["for_tests"]


@contextmanager
def forced(name):
    """The block runs on the instruction set `name`, really."""
    before = kernels.isa()["active"]
    kernels.set_isa(name)
    try:
        assert kernels.isa()["active"] == name
        yield
    finally:
        kernels.set_isa(before)


def assert_same_bytes(a, b):
    """Bit for bit, except that any NaN equals any other."""
    assert a.dtype == b.dtype and a.shape == b.shape
    if a.dtype == np.float32:
        both_nan = np.isnan(a) & np.isnan(b)
        a, b = np.where(both_nan, 0, a).view(np.uint32), np.where(both_nan, 0, b).view(np.uint32)
    different = np.argwhere(np.atleast_1d(a != b))
    assert len(different) == 0, f"{len(different)} differ, first at {different[0]}"


def on_every_isa(call):
    """The result of call(), after checking that every instruction set gives the same bytes."""
    results = {}
    for name in ISAS:
        with forced(name):
            results[name] = call()
    for name in ISAS:
        if results["scalar"] is None or results[name] is None:
            assert results["scalar"] is None and results[name] is None, name
        else:
            assert_same_bytes(results[name], results["scalar"])
    return results["scalar"]
