"""Under a memory control group of its own a model several times the limit runs, is not killed, and stays inside."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bench.memory import MemoryCgroup
from tests.supply.models import prompt
from tests.tiny import write_tiny

ROOT = Path(__file__).parents[2]
LIMIT = 110_000_000
SCRIPT = """
import json, sys
import numpy as np
from moeengine import Engine
path, tokens, out = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
with Engine(path, n_ctx=512, n_threads=2, **json.loads(sys.argv[4])) as engine:
    session = engine.session()
    rows = [session.eval(tokens[:-16]).copy()]
    rows += [session.eval([t]).copy() for t in tokens[-16:]]
    np.save(out, np.stack(rows))
    print(json.dumps(engine.stats(), default=str))
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Four layers of 64 experts in F16: 200 MB."""
    folder = tmp_path_factory.mktemp("bounded")
    return write_tiny(folder / "large.gguf", "qwen3moe", n_layer=4, n_expert=64, n_expert_used=4, quant="F16",
                      n_embd=256, n_ff_exp=512, n_ctx=512).path  # fmt: skip


def run(path, out, group=None, **settings):
    """Stats of a process inside the group; its logits are in `out`."""
    command = [sys.executable, "-c", SCRIPT, str(path), json.dumps(prompt(300)), str(out), json.dumps(settings)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120,
                          preexec_fn=group.enter if group else None)  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("settings", [{}, {"moe_mode": "stream", "cache_mb": 0}, {"moe_mode": "sweep-prefill"}], ids=str)
def test_a_model_twice_the_limit(path, tmp_path, settings):
    run(path, tmp_path / "free.npy", moe_mode="mmap")
    try:
        group = MemoryCgroup(LIMIT)
    except OSError as error:
        pytest.skip(f"no memory control group of our own: {error}")
    with group:
        stats = run(path, tmp_path / "bound.npy", group, **settings)
        peak = group.peak_bytes()
    assert stats["file_bytes"] > 1.8 * LIMIT
    assert peak <= 1.05 * LIMIT
    if settings.get("moe_mode", "stream") == "stream":
        assert stats["moe_mode"] == "stream" and "control group" in stats["moe_mode_why"]
        assert stats["supply"]["reader_bytes_read"] > LIMIT
    assert np.array_equal(np.load(tmp_path / "free.npy"), np.load(tmp_path / "bound.npy"))
