"""sweep-prefill and prefetch: the same bytes as mmap, with counters that show what was advised, dropped and read."""

import os
import shutil

import numpy as np
import pytest

from moeengine import Engine
from tests.supply.models import N_DECODE, N_LAYER, N_USED, prompt, run, write_model


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("advice"))


@pytest.fixture(scope="module")
def expected(path):
    return run(path, moe_mode="mmap")[0]


@pytest.mark.parametrize("ahead, behind", [(2, 2), (0, 0), (8, 1), (100, 100)])
def test_sweep_by_advice(path, expected, ahead, behind):
    logits, stats = run(path, moe_mode="sweep-prefill", sweep_method="advice", sweep_ahead=ahead, sweep_behind=behind)
    assert np.array_equal(logits, expected)
    supply = stats["supply"]
    assert supply["n_advice"] > 0 and supply["n_advice_refused"] == 0
    assert supply["bytes_advised"] > 0 and supply["bytes_dropped"] > 0
    assert supply["bytes_dropped"] < supply["bytes_advised"]  # rounded inward, outward


def test_sweep_by_a_ring_leaves_decode_to_the_page_cache(path, expected):
    logits, stats = run(path, moe_mode="sweep-prefill", sweep_method="direct")
    assert np.array_equal(logits, expected)
    supply = stats["supply"]
    assert supply["prefill"]["bytes_read"] >= supply["prefill"]["bytes_wanted"] > 0
    assert supply["decode"]["n_misses"] == supply["decode"]["bytes_read"] == 0


@pytest.mark.parametrize("method", ["advice", "direct"])
def test_short_passes_do_not_sweep(path, method):
    _, stats = run(path, n_prompt=31, n_decode=4, moe_mode="sweep-prefill", sweep_method=method)
    supply = stats["supply"]
    assert supply["prefill"]["bytes_read"] == 0 and supply.get("n_advice", 0) == 0


def advised_only_once(supply):
    """MADV_RANDOM of each bank at load."""
    return supply["n_advice"] == 3 * N_LAYER


@pytest.mark.parametrize("method", ["advice", "parallel-advice", "read"])
@pytest.mark.parametrize("io_threads", [1, 4])
def test_prefetch_brings_in_what_the_router_chose(path, expected, tmp_path, method, io_threads):
    logits, stats = run(path, moe_mode="prefetch", prefetch_method=method, io_threads=io_threads)
    assert np.array_equal(logits, expected)
    assert stats["supply"]["n_errors"] == 0
    copy = tmp_path / "cold.gguf"
    shutil.copy(path, copy)
    with Engine(copy, n_ctx=200, moe_mode="prefetch", prefetch_method=method, io_threads=io_threads) as engine:
        mapped = engine._runtime.model_file.maps[0]
        mapped.advise(0, mapped.size, "random")
        mapped.advise(0, mapped.size, "dontneed")
        with open(copy, "rb+") as f:
            os.fsync(f.fileno())
            os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        session = engine.session()
        for token in prompt(N_DECODE):
            session.eval([token])
        supply = engine.stats()["supply"]
    assert advised_only_once(supply)
    assert supply["n_slices"] == 3 * N_USED * N_LAYER * N_DECODE
    assert 0 < supply["n_slices_resident"] < supply["n_slices"]  # cold at first, found later
    assert 0 < supply["n_ranges"] <= supply["n_slices"] - supply["n_slices_resident"]
    assert supply["decode"]["bytes_read"] >= supply["decode"]["bytes_wanted"] > 0
    if method != "advice":
        assert supply["reader_n_reads"] == supply["n_ranges"]


def test_prefetch_announces_ahead_in_long_passes(path):
    _, stats = run(path, n_prompt=150, n_decode=0, moe_mode="prefetch")
    assert stats["supply"]["n_slices"] == 0 and stats["supply"]["n_advice"] > 3 * N_LAYER
