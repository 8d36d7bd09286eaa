"""Memory: which limit binds, which mode and cache follow from it, and what is refused."""

import os
import shutil

import numpy as np
import pytest

from moeengine import Engine
from moeengine.config import EngineConfig
from moeengine.errors import ConfigError
from moeengine.supply.base import ModelAt
from moeengine.supply.budget import Room, memory_room
from moeengine.supply.choice import BUDGET, Demand, choose
from tests.supply.models import run, write_model


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("choice"))


def lay_out(root, files):
    for name, text in files.items():
        place = root / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return root


V1 = "30 20 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
V2 = "30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"


@pytest.mark.parametrize("files, n_bytes, why", [
    ({"proc/meminfo": "MemTotal: 2000 kB\nMemAvailable: 1000 kB\n"}, 1024000, "machine"),
    ({"proc/meminfo": "MemTotal: 2000000 kB\nMemAvailable: 1000000 kB\n", "proc/self/cgroup": "3:memory:/a/b\n",
      "proc/self/mountinfo": V1, "sys/fs/cgroup/memory/a/b/memory.limit_in_bytes": "500000\n",
      "sys/fs/cgroup/memory/a/b/memory.usage_in_bytes": "300000\n",
      "sys/fs/cgroup/memory/a/b/memory.stat": "cache 9\ntotal_active_file 40000\ntotal_inactive_file 60000\n",
      "sys/fs/cgroup/memory/a/memory.limit_in_bytes": "9223372036854771712\n"}, 300000, "group b"),
    ({"proc/meminfo": "MemTotal: 2000000 kB\nMemAvailable: 1000000 kB\n", "proc/self/cgroup": "0::/a/b\n",
      "proc/self/mountinfo": V2, "sys/fs/cgroup/a/b/memory.max": "max\n", "sys/fs/cgroup/a/memory.max": "400000\n",
      "sys/fs/cgroup/a/memory.current": "100000\n", "sys/fs/cgroup/a/memory.stat": "anon 1\ninactive_file 20000\n"},
     320000, "group a"),
    ({"proc/meminfo": "MemTotal: 2000000 kB\nMemAvailable: 1000000 kB\n", "proc/self/cgroup": "0::/a\n",
      "proc/self/mountinfo": V2, "sys/fs/cgroup/a/memory.max": "400000\n", "sys/fs/cgroup/a/memory.high": "300000\n",
      "sys/fs/cgroup/a/memory.current": "100000\n"}, 200000, "group a"),
    ({}, 1 << 60, "machine"),
], ids=["machine", "v1", "v2 parent", "v2 high", "nothing known"])  # fmt: skip
def test_room_is_the_tightest_limit(tmp_path, files, n_bytes, why):
    room = memory_room(lay_out(tmp_path, files))
    assert (room.n_bytes, why in room.why) == (n_bytes, True), room


def decide(path, room_mb, *, whole_mb=1000, page_cache_share=1.0, experts_mb=None, **settings):
    with Engine(path, n_ctx=64, moe_mode="mmap") as engine:
        model_at = engine._runtime.model.located()
        experts = model_at.expert_bytes if experts_mb is None else int(experts_mb * 1e6)
        demand = Demand(experts, int(whole_mb * 1e6) - experts - 1000, 1000)
        config, why = EngineConfig(**settings), "test"
        if config.memory_budget is not None:
            room_mb, why = config.memory_budget / 1e6, BUDGET
        return choose(model_at, config, demand, Room(int(room_mb * 1e6), int(room_mb * 1e6), why), page_cache_share)


def test_auto_leaves_to_the_page_cache_what_fits(path):
    assert decide(path, 1200).mode == "mmap"


def test_what_fits_but_is_not_in_the_page_cache_is_read_ahead(path):
    for share, ahead in ((0.0, True), (0.8, True), (0.95, False)):
        choice = decide(path, 1200, experts_mb=600, page_cache_share=share)
        assert (choice.mode, choice.reads_ahead, "meanwhile" in choice.why) == ("mmap", ahead, ahead)
    assert not decide(path, 1200, experts_mb=20, page_cache_share=0).reads_ahead  # soon read
    assert not decide(path, 1200, experts_mb=600, page_cache_share=0, moe_mode="mmap").reads_ahead
    assert not decide(path, 400, experts_mb=600, page_cache_share=0).reads_ahead


def test_reading_ahead_brings_a_file_in_and_ends_with_the_engine(path, tmp_path, monkeypatch):
    copy = shutil.copy(path, tmp_path / "copy.gguf")
    monkeypatch.setattr("moeengine.supply.choice.COLD_BYTES", 0)
    monkeypatch.setattr("moeengine.engine.runtime.page_cache_share", lambda _: 0.0)
    engine = Engine(copy, n_ctx=64)
    ahead = engine._runtime.read_ahead
    ahead.join(60)
    assert ahead.is_done and ahead.n_bytes == os.path.getsize(copy)
    with Engine(path, n_ctx=64, moe_mode="mmap") as plain:
        assert np.array_equal(engine.logits([1, 2, 3]), plain.logits([1, 2, 3]))
    engine.close()
    ahead.close()
    monkeypatch.setattr("moeengine.supply.read_ahead.PIECE_BYTES", 64)  # takes its time: closing must end it
    engine = Engine(copy, n_ctx=64)
    engine.close()
    assert not engine._runtime.read_ahead.is_running


def test_auto_without_direct_reads(path, monkeypatch):
    monkeypatch.setattr("moeengine.supply.choice.direct_alignment", lambda _: 0)
    assert decide(path, 1100).mode == "prefetch" and "no direct reads" in decide(path, 1100).why
    assert decide(path, 0, memory_budget="1100M").mode == "stream"  # a page cache keeps no budget


def test_the_share_in_the_page_cache_and_the_sweep_it_leads_to(path, tmp_path):
    from moeengine.loader.model_file import ModelFile
    from moeengine.supply.probe import faster_sweep, page_cache_share

    copy = shutil.copy(path, tmp_path / "copy.gguf")
    with Engine(copy, n_ctx=64, moe_mode="mmap") as engine:
        model_at, file = engine._runtime.model.located(), engine._runtime.model_file
        assert page_cache_share(file) > 0.95
        assert faster_sweep(model_at, 1.0) == ("advice", "the experts are in the page cache")
    with open(copy, "rb+") as f:
        os.fsync(f.fileno())
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    with ModelFile.open(copy) as file:
        if page_cache_share(file) > 0.2:
            pytest.skip("the file system of the temporary folder keeps files in the page cache")
    with Engine(copy, n_ctx=64, moe_mode="sweep-prefill", sweep_method="auto") as engine:
        why = engine.stats()["moe_mode_why"]
    assert "sweep direct (probe: " in why or "sweep advice (" in why, why
    for method in ("direct", "advice"):  # said, not measured
        with Engine(copy, n_ctx=64, moe_mode="sweep-prefill", sweep_method=method) as engine:
            assert "probe" not in engine.stats()["moe_mode_why"]
            assert ("ring_slots" in engine.stats()["supply"]) == (method == "direct")


def test_auto_streams_what_does_not_fit(path):
    choice = decide(path, 1100)
    assert choice.mode == "stream" and choice.cache_mb > 0 and "room 1.10 GB" in choice.why


def test_refusals_name_what_would_do(path):
    with pytest.raises(ConfigError, match="memory: found 30 MB.*expected at least [0-9]+ MB"):
        decide(path, 30, moe_mode="stream")
    with pytest.raises(ConfigError, match="memory_budget: found 500 MB, expected at least 1000 MB for mmap"):
        decide(path, 5000, moe_mode="mmap", memory_budget="500M")
    without_experts = Demand(0, int(1e9), 0)
    with pytest.raises(ConfigError, match="expected at least 1000 MB for mmap.*a smaller n_ctx or n_ubatch needs less"):
        choose(ModelAt((), (), 0, {}), EngineConfig(memory_budget="500M"), without_experts, Room(int(5e8), int(5e8), BUDGET))
    with pytest.raises(ConfigError, match="cache_mb: found 900, expected at most"):
        decide(path, 990, moe_mode="stream", cache_mb=900)


@pytest.mark.parametrize("text, n_bytes", [("900M", 900e6), ("4 GB", 4e9), ("1.5g", 1.5e9), (1000, 1000)])
def test_sizes_in_words(text, n_bytes):
    assert EngineConfig(memory_budget=text).memory_budget == n_bytes


@pytest.mark.parametrize("text", ["", "many", "-1", 0, "G"])
def test_sizes_that_are_none(text):
    with pytest.raises(ConfigError, match="memory_budget"):
        EngineConfig(memory_budget=text)


@pytest.mark.parametrize("policy", ["warm", "anon"])
@pytest.mark.parametrize("mode", ["mmap", "stream"])
@pytest.mark.parametrize("changes", [{}, {"tied": True}, {"n_shards": 3}], ids=str)
def test_dense_weights_are_the_same_bytes_wherever_they_are(tmp_path, policy, mode, changes):
    path = write_model(tmp_path, **changes)
    expected, _ = run(path, n_prompt=40, n_decode=4, moe_mode="mmap")
    logits, _ = run(path, n_prompt=40, n_decode=4, moe_mode=mode, cache_mb=0, dense_weights=policy)
    assert np.array_equal(logits, expected)


def test_anon_weights_are_not_in_the_mapping(path):
    with Engine(path, n_ctx=64, moe_mode="stream", cache_mb=0, dense_weights="anon") as engine:
        file = engine._runtime.model_file
        spans = [(m.address, m.address + m.size) for m in file.maps]
        inside = [n for n in file.tensors if any(a <= file.address(n) < b for a, b in spans)]
    assert inside and all("_exps" in name for name in inside)


def test_prediction_changes_no_byte_and_is_used(path):
    from tests.supply.models import cache_mb_of

    expected, _ = run(path, moe_mode="mmap")
    mb = cache_mb_of(path, 0.7)
    for n in (1, 2, 4):
        logits, stats = run(path, moe_mode="stream", cache_mb=mb, prefetch_layers=n)
        assert np.array_equal(logits, expected)
        assert stats["supply"]["n_predicted"] >= stats["supply"]["n_predicted_used"] > 0


def test_predictions_that_do_not_come_true_are_withheld(path):
    """Random routers say little about later layers: most predictions are wrong, and soon few are followed."""
    from tests.supply.models import cache_mb_of

    _, stats = run(path, n_prompt=5, n_decode=150, moe_mode="stream", cache_mb=cache_mb_of(path, 0.7), prefetch_layers=2)
    supply = stats["supply"]
    assert supply["n_predicted"] > 0
    if 2 * supply["n_predicted_used"] < supply["n_predicted"]:
        assert supply["n_predictions_withheld"] > 0


@pytest.mark.parametrize("settings, names", [
    ({"moe_mode": "mmap", "cache_mb": 5, "io_threads": 2}, {"cache_mb", "io_threads"}),
    ({"moe_mode": "auto", "drop_cold_experts": 0.5}, {"drop_cold_experts"}),
    ({"moe_mode": "prefetch", "prefetch_method": "read", "io_threads": 2, "sweep_ahead": 3}, {"sweep_ahead"}),
    ({"moe_mode": "sweep-prefill", "io_threads": 2, "warm_experts": "x"}, {"warm_experts"}),
    ({"moe_mode": "stream", "cache_mb": 0, "prefetch_layers": 1, "prefetch_method": "read"}, {"prefetch_method"}),
    ({"moe_mode": "mmap"}, set()),
], ids=lambda v: v.get("moe_mode") if isinstance(v, dict) else "")  # fmt: skip
def test_settings_of_another_mode_are_told(path, tmp_path, caplog, settings, names):  # B096
    if "warm_experts" in settings:
        settings = settings | {"warm_experts": tmp_path / "warm.json"}
        settings["warm_experts"].write_text('{"experts": []}')
    with Engine(path, n_ctx=64, n_threads=1, **settings):
        pass
    assert {r.args[0] for r in caplog.records if "means nothing in mode" in r.msg} == names


def test_weights_that_do_not_fit_beside_a_loading_model_stay_in_the_file(path, monkeypatch):
    """Unless memory of our own was asked for: then it is refused, with what that takes."""
    monkeypatch.setattr("moeengine.supply.dense.memory_room", lambda: Room(20_000_000, 40_000_000, "limit of control group x"))
    options = dict(n_ctx=64, moe_mode="stream", cache_mb=0)
    with Engine(path, **options) as engine:
        assert engine._runtime.config.dense_weights == "mmap"
    with pytest.raises(ConfigError, match=r"anon needs 3\d MB, 32 of them .*found room for 20 \(limit of control group x\)"):
        Engine(path, **options, dense_weights="anon")
