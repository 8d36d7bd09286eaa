"""A model file that is cut, replaced or removed while it is in use: a typed error, and everything else lives."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from moeengine import Engine
from moeengine.errors import SupplyError
from moeengine.loader.mapped_file import MappedFile
from tests.loader.conditions import without_sanitizer
from tests.supply.models import prompt, write_model

ROOT = Path(__file__).parents[2]
MODES = {
    "mmap": dict(moe_mode="mmap"),
    "prefetch": dict(moe_mode="prefetch"),
    "prefetch by reads": dict(moe_mode="prefetch", prefetch_method="read"),
    "sweep by advice": dict(moe_mode="sweep-prefill", sweep_method="advice"),
    "sweep by a ring": dict(moe_mode="sweep-prefill", sweep_method="direct"),
    "stream": dict(moe_mode="stream", cache_mb=0),
    "stream, dense weights mapped": dict(moe_mode="stream", cache_mb=0, dense_weights="mmap"),
}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("lost"))


@pytest.fixture
def copy(path, tmp_path):
    return Path(shutil.copy(path, tmp_path / "copy.gguf"))


def offset_of(engine, name):
    return engine._runtime.model_file.tensors[name].offset


@pytest.mark.parametrize("n_tokens", [1, 70])
@pytest.mark.parametrize("settings", MODES.values(), ids=MODES)
def test_a_file_that_is_cut_and_grows_back(copy, settings, n_tokens):
    whole = copy.read_bytes()
    with Engine(copy, n_ctx=200, n_threads=2, **settings) as engine:
        session, other = engine.session(), engine.session()
        before = session.eval(prompt(n_tokens))
        other.eval(prompt(3))
        os.truncate(copy, offset_of(engine, "blk.1.ffn_gate_exps.weight"))
        for _ in range(2):  # as long as the bytes are missing, and every time in words
            with pytest.raises(SupplyError, match=r"layer [12], expert \d+.*copy\.gguf: .*changed while in use"):
                other.eval(prompt(n_tokens, seed=9))
        assert other.n_past == 3
        copy.write_bytes(whole)  # the same file: opened, not replaced
        session.rewind(0)
        assert np.array_equal(session.eval(prompt(n_tokens)), before)
        assert len(other.eval(prompt(3))) > 0


@pytest.mark.parametrize("settings", MODES.values(), ids=MODES)
def test_a_file_that_is_replaced_or_removed_is_the_one_that_was_opened(copy, tmp_path, settings):
    with Engine(copy, n_ctx=200, n_threads=2, **settings) as engine:
        before = engine.logits(prompt())
        other = write_model(tmp_path, seed=1)
        os.replace(other, copy)
        assert np.array_equal(engine.logits(prompt()), before)
        copy.unlink()
        assert np.array_equal(engine.session().eval(prompt()), before[-1])


def test_readers_opened_late_read_the_file_that_is_mapped(copy, tmp_path):
    """Replaced between mapping and opening for the readers: the bytes are of one file, not of two."""
    from moeengine.supply.readers import Readers, name_of_open

    mapped = MappedFile(copy)
    first = copy.stat().st_ino
    os.replace(write_model(tmp_path, seed=1), copy)
    assert copy.stat().st_ino != first == os.stat(name_of_open(mapped)).st_ino
    readers = Readers([mapped], 1)

    assert sum("copy.gguf (deleted)" in s for s in os_links()) >= 2
    readers.close()


def os_links():
    links = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{fd}"))
        except OSError:
            pass
    return links


def test_weights_that_are_cut_before_they_are_read_at_load(copy, monkeypatch):
    from moeengine.loader.model_file import ModelFile

    opened, whole = ModelFile.open.__func__, copy.read_bytes()

    def open_and_cut(cls, where):
        file = opened(cls, where)
        os.truncate(copy, file.tensors["blk.2.attn_norm.weight"].offset)
        return file

    monkeypatch.setattr(ModelFile, "open", classmethod(open_and_cut))
    with pytest.raises(SupplyError, match="changed while in use"):
        Engine(copy, n_ctx=64, moe_mode="mmap", dense_weights="warm")
    copy.write_bytes(whole)
    with pytest.raises(SupplyError, match="ends inside it; was it changed"):
        Engine(copy, n_ctx=64, moe_mode="stream", cache_mb=0, dense_weights="anon")


def test_a_mapping_says_what_it_missed_and_shows_the_file_again(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(bytes(range(256)) * 64)  # four pages
    mapped = MappedFile(file)
    view = np.frombuffer(mapped, np.uint8)
    assert mapped.take_missing() == -1
    os.truncate(file, 4096)
    assert view[4095] == 255 and mapped.take_missing() == -1
    assert view[4096 + 5] == 0 and view[-1] == 0
    assert mapped.take_missing() == 4096 and mapped.take_missing() == -1
    file.write_bytes(bytes(range(256)) * 64)
    assert view[4096 + 5] == 5 and mapped.take_missing() == -1


FOREIGN = """
import ctypes, faulthandler, mmap, os, sys
import moeengine.loader.mapped_file as m
if sys.argv[2] == "handler": faulthandler.enable()
file = m.MappedFile(sys.argv[1])
with open(sys.argv[1] + ".other", "w+b") as f:
    f.truncate(8192)
    view = mmap.mmap(f.fileno(), 8192)
    f.truncate(0)
    view[0]
"""


@without_sanitizer
@pytest.mark.parametrize("kind", ["handler", "none"])
def test_faults_of_others_end_as_they_did(copy, kind):
    done = subprocess.run([sys.executable, "-c", FOREIGN, str(copy), kind], cwd=ROOT, capture_output=True, timeout=60)
    assert done.returncode == -signal.SIGBUS
    assert (b"Bus error" in done.stderr) == (kind == "handler")
