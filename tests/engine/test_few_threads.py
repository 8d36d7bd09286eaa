"""A system that grants fewer threads than were asked for: the same bytes, by those there are."""

import subprocess
import sys
from pathlib import Path

from tests.loader.conditions import without_sanitizer
from tests.tiny import write_tiny

ROOT = Path(__file__).parents[2]
SCRIPT = """
import os, resource, sys
from moeengine import Engine
with Engine(sys.argv[1], n_threads=1) as engine:
    expected = engine.logits(range(60))
n_before = len(os.listdir("/proc/self/task"))
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 60_000_000,) * 2)  # room for the stacks of a few
with Engine(sys.argv[1], n_threads=64) as engine:
    found = engine.logits(range(60))
    n_threads = len(os.listdir("/proc/self/task")) - n_before
assert 0 < n_threads < 63, n_threads
assert found.tobytes() == expected.tobytes()
"""


@without_sanitizer
def test_fewer_threads_than_asked_for(tmp_path):  # B115
    path = write_tiny(tmp_path / "a.gguf", n_expert=16, tokenizer=False).path
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(path)], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
