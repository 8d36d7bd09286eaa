"""The mapping of a model file is given up where no weight is read from it, and only there."""

import logging

import numpy as np
import pytest

from moeengine import Engine
from moeengine.supply.release import file_spans
from tests.supply.models import cache_mb_of, prompt, run, write_model
from tests.tiny import write_tiny

OPTIONS = dict(moe_mode="stream", dense_weights="anon", release_mmap=True)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("release"))


@pytest.fixture(scope="module")
def expected(path):
    return run(path, moe_mode="mmap")[0]


def mapped_bytes(engine):
    """Bytes of the model's files that this process's own map shows."""
    return sum(b - a for m in engine._runtime.model_file.maps for a, b in file_spans(m))


@pytest.mark.parametrize("cache", [0, 0.3, 1.1])
def test_the_same_bytes_without_a_mapping(path, expected, cache):
    logits, stats = run(path, **OPTIONS, cache_mb=cache and cache_mb_of(path, cache))
    assert stats["mapping_released"] and np.array_equal(logits, expected)
    assert stats["supply"]["reader_bytes_read"] > 0


@pytest.mark.parametrize("changes", [
    {"tied": True}, {"n_shards": 3}, {"fused_gate_up": True}, {"n_expert": None, "tiers": [(40, "Q8_0"), (24, "Q4_K")]},
], ids=str)  # fmt: skip
def test_the_file_is_no_longer_mapped(tmp_path, changes):
    options = dict(n_layer=3, n_expert=64, n_expert_used=4, quant="Q4_K", n_ctx=256) | changes
    path = write_tiny(tmp_path / "m.gguf", "qwen3moe", **options).path
    expected, _ = run(path, moe_mode="mmap", n_decode=4)
    with Engine(path, n_ctx=200, n_threads=2, moe_mode="mmap") as engine:
        assert mapped_bytes(engine) >= engine._runtime.model_file.total_bytes
    with Engine(path, n_ctx=200, n_threads=2, cache_mb=0, **OPTIONS) as engine:
        assert mapped_bytes(engine) == 0
        readers = engine._runtime.supply.readers
        assert readers.n_reopened == 1
        assert np.array_equal(engine.session().eval(prompt()), expected[0])
        engine.generate("what a text needs", max_tokens=2)
        session = engine.session()
        session.eval(prompt(9))
        session.save(tmp_path / "timeline")
    with Engine(path, n_ctx=200, moe_mode="mmap") as engine:  # the same model to what was saved
        session = engine.session()
        session.load(tmp_path / "timeline")
        assert session.n_past == 9


@pytest.mark.parametrize("settings, reason", [
    (dict(moe_mode="mmap"), "weights are read from it"),
    (dict(moe_mode="prefetch", dense_weights="anon"), r"9 weights are read from it, such as blk\.0\.ffn_gate_exps"),
    (dict(moe_mode="stream", dense_weights="mmap"), "weights are read from it"),
    (dict(moe_mode="sweep-prefill", sweep_method="direct", dense_weights="anon"), "9 weights are read from it"),
], ids=["mmap", "prefetch", "dense weights mapped", "decode from the mapping"])  # fmt: skip
def test_declined_with_a_count(path, expected, caplog, settings, reason):
    with caplog.at_level(logging.WARNING, "moeengine"):
        logits, stats = run(path, release_mmap=True, **settings)
    assert not stats["mapping_released"] and np.array_equal(logits, expected)
    (record,) = [r.getMessage() for r in caplog.records if "release_mmap" in r.getMessage()]
    assert "declined" in record
    import re

    assert re.search(reason, record), record


def test_a_view_that_somebody_holds_keeps_the_mapping(path):
    with Engine(path, n_ctx=64, cache_mb=0, moe_mode="stream", dense_weights="anon") as engine:
        runtime = engine._runtime
        view = runtime.model_file.raw("blk.0.ffn_up_exps.weight")
        runtime.release_mapping()
        assert not runtime.release_of_mapping.done and runtime.release_of_mapping.n_pointers == 1
        assert mapped_bytes(engine) > 0 and view.any()
        del view
        runtime.release_mapping()
        assert runtime.release_of_mapping.done and mapped_bytes(engine) == 0
