"""stream: the same bytes as mmap for every cache size, policy and number of readers, and proof that it read."""

import os
import shutil

import numpy as np
import pytest

from moeengine import Engine
from moeengine.errors import ConfigError, SupplyError
from tests.supply.models import N_DECODE, N_EXPERT, N_LAYER, N_USED, cache_mb_of, prompt, run, write_model


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("stream"))


@pytest.fixture(scope="module")
def expected(path):
    logits, stats = run(path, moe_mode="mmap")
    assert stats["moe_mode"] == "mmap"
    return logits


def least_mb(path):
    """The smallest cache that is accepted, from the words of the refusal."""
    with pytest.raises(ConfigError, match="cache_mb.*at least"):
        Engine(path, n_ctx=64, moe_mode="stream", cache_mb=0.001)
    return cache_mb_of(path, 1) * N_USED / 64 * 1.3


@pytest.mark.parametrize("policy", ["lru", "lfu"])
@pytest.mark.parametrize("share", [0.10, 0.3, 0.7, 1.1])
def test_same_bytes_for_every_cache(path, expected, policy, share):
    mb = cache_mb_of(path, share)
    logits, stats = run(path, moe_mode="stream", cache_mb=mb, cache_policy=policy)
    assert np.array_equal(logits, expected)
    supply = stats["supply"]
    decode = supply["decode"]
    assert decode["n_hits"] + decode["n_misses"] >= N_DECODE * N_LAYER * N_USED
    assert supply["reader_bytes_read"] > 0 and supply["prefill"]["bytes_read"] > 0
    if share < 0.5:
        assert supply["n_evicted"] > 0 and decode["n_misses"] > 0 and decode["bytes_read"] > 0
    if share > 1:
        assert supply["n_evicted"] == 0 and decode["n_hits"] > decode["n_misses"]


def test_what_is_wanted_goes_before_what_was_predicted(tmp_path):
    """One token's predictions may fill the smallest cache; a short prompt after it needs half of that."""
    path = write_model(tmp_path, n_layer=8, quants={}, quant="Q8_0")

    def passes(**settings):
        with Engine(path, n_ctx=200, n_threads=1, **settings) as engine, engine.session() as session:
            return np.stack([session.eval(prompt(n, seed)) for seed in range(12) for n in (1, 1, 4)])

    expected = passes(moe_mode="mmap")
    mb = cache_mb_of(path, 8 * N_USED / (N_EXPERT * N_LAYER)) * 1.001  # all that one token may use
    for n in (1, 4):
        assert np.array_equal(passes(moe_mode="stream", cache_mb=mb, prefetch_layers=n), expected)


@pytest.mark.parametrize("io_threads", [1, 3, 8])
@pytest.mark.parametrize("n_threads", [1, 3])
def test_same_bytes_for_every_number_of_threads(path, expected, io_threads, n_threads):
    logits, stats = run(path, moe_mode="stream", cache_mb=cache_mb_of(path, 0.2), io_threads=io_threads,
                        n_threads=n_threads)  # fmt: skip
    assert np.array_equal(logits, expected)
    assert stats["supply"]["io_threads"] == io_threads and stats["supply"]["n_evicted"] > 0


@pytest.mark.parametrize("ubatch", [1, 7, 33, 200])
def test_same_bytes_without_a_cache_and_for_every_chunk(path, expected, ubatch):
    logits, stats = run(path, moe_mode="stream", cache_mb=0, n_ubatch=ubatch)
    assert np.array_equal(logits, expected)
    decode = stats["supply"]["decode"]
    assert stats["supply"]["cache_slots"] == 0 and decode["n_hits"] == 0
    assert decode["bytes_read"] >= decode["bytes_wanted"] > 0


def test_smallest_cache_and_a_forced_one_below_it(path, expected):
    for settings in ({"cache_mb": least_mb(path)}, {"cache_mb": 0.3, "force_cache": True}):
        logits, stats = run(path, moe_mode="stream", **settings)
        assert np.array_equal(logits, expected)
        assert stats["supply"]["n_evicted"] > 0 or stats["supply"]["cache_slots"] < 2 * N_USED


@pytest.mark.parametrize("changes", [
    {"fused_gate_up": True}, {"n_shards": 3}, {"n_expert": None, "tiers": [(40, "Q8_0"), (24, "Q4_K")]},
    {"n_expert": [64, 12, 40]}, {"arch": "qwen2moe"}, {"arch": "gpt-oss", "quants": {"_exps": "MXFP4"}},
], ids=str)  # fmt: skip
def test_same_bytes_for_every_layout(tmp_path, changes):
    arch = changes.pop("arch", "qwen3moe")
    from tests.tiny import write_tiny

    options = dict(n_layer=3, n_expert=64, n_expert_used=N_USED, quant="Q4_K", n_ctx=256) | changes
    path = write_tiny(tmp_path / "m.gguf", arch, **options).path
    expected, _ = run(path, moe_mode="mmap", n_decode=8)
    for mb in (0, cache_mb_of(path, 0.3)):
        logits, stats = run(path, moe_mode="stream", cache_mb=mb, n_decode=8)
        assert np.array_equal(logits, expected)
        assert stats["supply"]["reader_bytes_read"] > 0


def test_reads_go_past_the_page_cache(path, tmp_path):
    copy = tmp_path / "copy.gguf"
    shutil.copy(path, copy)
    with Engine(copy, n_ctx=200, moe_mode="stream", cache_mb=cache_mb_of(path, 0.3)) as engine:
        if not engine.stats()["supply"]["direct"]:
            pytest.skip("the file system of the temporary folder has no direct reads")
        mapped = engine._runtime.model_file.maps[0]
        mapped.advise(0, mapped.size, "random")  # no read-ahead around the other weights
        mapped.advise(0, mapped.size, "dontneed")
        with open(copy, "rb+") as f:
            os.fsync(f.fileno())
            os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        engine.logits(prompt())
        expert = engine._runtime.model_file.tensors["blk.1.ffn_up_exps.weight"]
        resident, total = mapped.resident_pages(expert.offset, expert.n_bytes)
    assert resident < total / 4


def test_a_file_that_shrinks_is_a_typed_error_and_the_engine_lives(path, tmp_path):
    copy = tmp_path / "shrinks.gguf"
    shutil.copy(path, copy)
    with Engine(copy, n_ctx=200, moe_mode="stream", cache_mb=0) as engine:
        before = engine.logits(prompt())
        size = copy.stat().st_size
        tensors = engine._runtime.model_file.tensors
        cut = tensors["blk.2.ffn_up_exps.weight"].offset + 4096
        whole = copy.read_bytes()
        os.truncate(copy, cut)
        other = engine.session()
        with pytest.raises(SupplyError, match=r"layer 2, expert \d+: .*shrinks.gguf: .*the file ends"):
            engine.logits(prompt())
        with open(copy, "r+b") as f:
            f.write(whole)
        assert copy.stat().st_size == size
        assert np.array_equal(engine.logits(prompt()), before)
        assert len(other.eval(prompt(5))) > 0


def test_a_file_without_a_name_is_still_read(path, tmp_path):
    copy = tmp_path / "gone.gguf"
    shutil.copy(path, copy)
    with Engine(copy, n_ctx=200, moe_mode="stream", cache_mb=0) as engine:
        before = engine.logits(prompt())
        copy.unlink()
        assert np.array_equal(engine.logits(prompt()), before)


def test_cancel_in_a_sweep_leaves_the_engine_usable(path, expected):
    import threading

    from moeengine.errors import CancelledError

    with Engine(path, n_ctx=200, n_threads=2, moe_mode="stream", cache_mb=cache_mb_of(path, 0.3)) as engine:
        tokens = prompt(190)
        for delay in (0.0005, 0.002, 0.004):
            timer = threading.Timer(delay, engine.cancel)
            timer.start()
            try:
                engine.logits(tokens)
            except CancelledError:
                pass
            timer.join()
        assert np.array_equal(engine.session().eval(prompt()), expected[0])


def test_threads_and_memory_go_with_the_engine(path):
    def n_threads():
        return len(os.listdir("/proc/self/task"))

    for _ in range(3):
        with Engine(path, n_ctx=100, n_threads=1, moe_mode="stream", cache_mb=0, io_threads=4) as engine:
            engine.logits(prompt(40))
            during = n_threads()
        assert n_threads() <= during - 4  # a helper of the call may have gone too


def test_works_in_a_forked_child(path, expected):
    with Engine(path, n_ctx=200, n_threads=2, moe_mode="stream", cache_mb=cache_mb_of(path, 0.3)) as engine:
        engine.session().eval(prompt())
        pid = os.fork()
        if pid == 0:
            os._exit(0 if np.array_equal(engine.session().eval(prompt()), expected[0]) else 1)
        assert os.waitpid(pid, 0)[1] == 0


def test_dropping_cold_experts_is_lossy_counted_and_said(path, expected):
    mb = cache_mb_of(path, 0.2)
    logits, stats = run(path, moe_mode="stream", cache_mb=mb, drop_cold_experts=1.0)
    assert stats["is_lossy"] and stats["supply"]["n_dropped"] > 0
    assert np.array_equal(logits[0], expected[0])  # the prompt drops nothing
    assert not np.array_equal(logits, expected)
    exact, stats = run(path, moe_mode="stream", cache_mb=mb, drop_cold_experts=0.0)
    assert np.array_equal(exact, expected) and not stats["is_lossy"] and stats["supply"]["n_dropped"] == 0


def test_other_weights_left_to_the_page_cache_are_read_ahead_layer_by_layer(path, expected, tmp_path):
    copy = tmp_path / "cold.gguf"
    shutil.copy(path, copy)
    with Engine(copy, n_ctx=200, moe_mode="stream", cache_mb=0, dense_weights="mmap") as engine:
        runtime, session = engine._runtime, engine.session()
        assert np.array_equal(session.eval(prompt()), expected[0])
        found = engine.stats()["supply"]["n_dense_announced"]
        mapped = runtime.model_file.maps[0]
        mapped.advise(0, mapped.size, "dontneed")
        with open(copy, "rb+") as f:
            os.fsync(f.fileno())
            os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        session.rewind(0)
        assert np.array_equal(session.eval(prompt()), expected[0])
        assert engine.stats()["supply"]["n_dense_announced"] > found
        for name in ("blk.1.attn_q.weight", "output.weight"):
            info = runtime.model_file.tensors[name]
            resident, total = mapped.resident_pages(info.offset, info.n_bytes)
            assert resident == total


def test_other_weights_in_memory_of_their_own_are_not_announced(path):
    _, stats = run(path, n_prompt=5, n_decode=2, moe_mode="stream", cache_mb=0, dense_weights="anon")
    assert stats["supply"]["n_dense_announced"] == 0
