"""Models several times larger than the memory there is: they run, are not killed, and stay inside.

Under a memory control group of its own (the system counts and would kill), and under a memory budget (the process's own
peak is looked at).
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest

from bench.memory import MemoryCgroup
from moeengine import Engine
from moeengine.errors import ConfigError
from moeengine.supply.budget import memory_room
from tests.loader.conditions import without_sanitizer
from tests.supply.models import prompt, write_model
from tests.tiny import write_tiny

ROOT = Path(__file__).parents[2]
N_CTX, N_PROMPT, N_DECODE = 2304, 2000, 256
N_LAYER, N_EXPERT, N_EMBD, N_FF = 4, 256, 256, 512
NEEDED_BYTES = 3e9
SCRIPT = """
import json, sys
import numpy as np
from moeengine import Engine
path, tokens, n_decode, out = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
with Engine(path, n_threads=2, **json.loads(sys.argv[5])) as engine:
    session = engine.session()
    rows = [session.eval(tokens[:-n_decode]).copy()]
    rows += [session.eval([t]).copy() for t in tokens[-n_decode:]]
    np.save(out, np.stack(rows))
    stats = engine.stats()
with open("/proc/self/status") as lines:
    stats["peak_bytes"] = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
print(json.dumps(stats, default=str))
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Experts in F16, 805 MB of them, made of few random numbers."""
    folder = tmp_path_factory.mktemp("bounded")
    if memory_room().n_bytes < NEEDED_BYTES or shutil.disk_usage(folder).free < NEEDED_BYTES:
        pytest.skip(f"needs {NEEDED_BYTES / 1e9:.0f} GB of memory and of disk to write the model")
    rng = np.random.default_rng(1)
    some = (rng.standard_normal(4 * N_EMBD * N_FF, np.float32) / 16).astype(np.float16)

    def bank(rows, columns, shift):
        n = rows * columns
        starts = 977 * (shift + np.arange(N_EXPERT)) % (len(some) - n)
        return np.stack([some[i : i + n].reshape(rows, columns) for i in starts])

    tensors = {}
    for il in range(N_LAYER):
        for i, (part, shape) in enumerate((("gate", (N_FF, N_EMBD)), ("up", (N_FF, N_EMBD)), ("down", (N_EMBD, N_FF)))):
            name = f"blk.{il}.ffn_{part}_exps.weight"
            tensors[name] = (bank(*shape, 1000 * (3 * il + i)), gguf.GGMLQuantizationType.F16)
    made = write_tiny(folder / "large.gguf", "qwen3moe", n_layer=N_LAYER, n_expert=N_EXPERT, n_expert_used=2, quant="Q8_0",
                      n_embd=N_EMBD, n_ff_exp=N_FF, n_ctx=N_CTX, tensors=tensors)  # fmt: skip
    yield made.path
    made.path.unlink()


@pytest.fixture(scope="module")
def expected(path, tmp_path_factory):
    out = tmp_path_factory.mktemp("free") / "free.npy"
    run(path, out, moe_mode="mmap")
    return np.load(out)


def run(path, out, group=None, **settings):
    """Stats of a process, inside the group if there is one; its logits are in `out`."""
    settings = {"n_ctx": N_CTX} | settings
    command = [sys.executable, "-c", SCRIPT, str(path), json.dumps(prompt(N_PROMPT + N_DECODE)), str(N_DECODE), str(out),
               json.dumps(settings)]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200,
                          preexec_fn=group.enter if group else None)  # fmt: skip
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
    return json.loads(done.stdout)


def group_of(limit):
    try:
        return MemoryCgroup(limit)
    except OSError as error:
        pytest.skip(f"no memory control group of our own: {error}")


@without_sanitizer
@pytest.mark.parametrize("times", [2, 4, 8])
def test_under_a_control_group(path, expected, tmp_path, times):
    limit = path.stat().st_size // times
    with group_of(limit) as group:
        stats = run(path, tmp_path / "bound.npy", group)
        peak = group.peak_bytes()
    assert peak <= 1.05 * limit
    assert stats["moe_mode"] == "stream" and "control group" in stats["moe_mode_why"]
    assert stats["supply"]["reader_bytes_read"] > 2 * limit
    assert np.array_equal(np.load(tmp_path / "bound.npy"), expected)


@pytest.mark.parametrize("mode", ["mmap", "prefetch", "sweep-prefill"])
def test_modes_of_the_page_cache_live_in_a_control_group_too(path, expected, tmp_path, mode):
    limit = path.stat().st_size // 4
    with group_of(limit) as group:
        stats = run(path, tmp_path / "bound.npy", group, moe_mode=mode)
        assert group.peak_bytes() <= 1.05 * limit
    assert stats["moe_mode"] == mode
    assert np.array_equal(np.load(tmp_path / "bound.npy"), expected)


@without_sanitizer
@pytest.mark.parametrize("times", [2, 4, 8])
def test_under_a_budget(path, expected, tmp_path, times):
    budget = path.stat().st_size // times
    stats = run(path, tmp_path / "bound.npy", memory_budget=budget)
    assert stats["peak_bytes"] <= 1.05 * budget
    assert stats["moe_mode"] == "stream" and "memory_budget" in stats["moe_mode_why"]
    assert stats["supply"]["slab_bytes"] < budget and stats["supply"]["reader_bytes_read"] > 2 * budget
    assert np.array_equal(np.load(tmp_path / "bound.npy"), expected)


def test_a_budget_that_cannot_be_kept_names_one_that_can(tmp_path):
    path = write_model(tmp_path)
    with pytest.raises(ConfigError, match="memory: found 10 MB.*expected at least ([0-9]+) MB") as refusal:
        Engine(path, n_ctx=256, memory_budget="10M", moe_mode="stream")
    least = int(str(refusal.value).split("expected at least ")[1].split()[0])
    with pytest.raises(ConfigError, match="expected at least"):
        Engine(path, n_ctx=256, memory_budget=f"{least - 5}M", moe_mode="stream")
    with Engine(path, n_ctx=256, memory_budget=f"{least + 2}M", moe_mode="stream") as engine:
        assert engine.logits(prompt(40)).shape[0] == 40


def test_chunks_shrink_until_they_fit(path, tmp_path):
    sizes = {}
    for megabytes in (700, 110):
        with Engine(path, n_ctx=N_CTX, memory_budget=f"{megabytes}M") as engine:
            sizes[megabytes] = engine.session().n_ubatch
            assert (f"chunks of {sizes[megabytes]} tokens" in engine.stats()["moe_mode_why"]) == (megabytes == 110)
    assert 32 <= sizes[110] < sizes[700] == N_CTX


def test_a_further_session_beyond_the_budget_is_refused(tmp_path):
    path = write_model(tmp_path)
    with Engine(path, n_ctx=200, memory_budget="1G") as engine:
        first, second = engine.session(), engine.session()
        first.eval(prompt(3))
        with pytest.raises(ConfigError, match="memory_budget: found .* for sessions, of which .* are in use"):
            second.eval(prompt(3))
        first.close()
        assert len(second.eval(prompt(3)))


def test_sessions_share_the_scratch_that_the_budget_counts(tmp_path):
    path = write_model(tmp_path)
    with Engine(path, n_ctx=200, memory_budget="1G") as engine:
        sessions = [engine.session(n_ctx=100) for _ in range(2)]
        assert len({tuple(s.eval(prompt(3))) for s in sessions}) == 1
