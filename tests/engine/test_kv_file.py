"""Saved sessions: what comes back, and every way in which a file is refused."""

import json
import os

import numpy as np
import pytest

from moeengine.engine import kv_file
from moeengine.errors import ConfigError, ContextOverflowError
from tests.engine.fakes import N_VOCAB, fake_engine


@pytest.fixture
def made(monkeypatch):
    return fake_engine(monkeypatch, n_ctx=32)


def test_a_saved_session_goes_on_as_if_never_left(made, tmp_path):
    engine, model = made
    path = tmp_path / "a.session"
    a, b = engine.session(), engine.session()
    a.eval([1, 2, 3])
    a.save(path)
    b.eval([9])
    b.load(path)
    assert b.tokens == [1, 2, 3]
    assert np.array_equal(a.eval([4]), b.eval([4]))
    assert model.contexts[2].computed == [1, 1]  # nothing was computed again
    assert os.listdir(tmp_path) == ["a.session"]


def test_an_empty_session(made, tmp_path):
    engine, model = made
    session = engine.session()
    session.save(tmp_path / "a")
    session.eval([1])
    session.load(tmp_path / "a")
    assert session.n_past == 0


def test_a_failed_save_leaves_what_was_there(made, tmp_path, monkeypatch):
    engine, model = made
    session, path = engine.session(), tmp_path / "a"
    session.save(path)
    before = path.read_bytes()
    session.eval([1])

    def full(fd):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="space"):
        session.save(path)
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["a"]


def edited(data, **changes):
    n = int.from_bytes(data[8:12], "little")
    header = json.dumps(json.loads(data[12 : 12 + n]) | changes).encode()
    return data[:8] + len(header).to_bytes(4, "little") + header + data[12 + n :]


@pytest.mark.parametrize(
    "damage, words",
    [
        (lambda d: b"", "at its start"),
        (lambda d: b"GGUF" + d[4:], "at its start"),
        (lambda d: d[:8] + b"\xff\xff\xff\xff" + d[12:], "header of 4294967295"),
        (lambda d: d[:10], "header"),
        (lambda d: d[:12] + b"x" + d[13:], "damaged header"),
        (lambda d: d[:-1], "bytes after the header"),
        (lambda d: d + b"x", "bytes after the header"),
        (lambda d: d[:-1] + b"x", "checksum"),
        (lambda d: edited(d, model="00"), "another model"),
        (lambda d: edited(d, model=None), "damaged header"),
        (lambda d: d[:8] + (10**5).to_bytes(4, "little") + b"[" * 10**5, "damaged header"),
        (lambda d: edited(d, n_tokens=-1), "damaged header"),
        (lambda d: edited(d, n_tokens=2**70), "bytes after the header"),
        (lambda d: edited(d, n_kv=None), "damaged header"),
        (lambda d: edited(d, n_kv=1.5), "damaged header"),
    ],
)
def test_refused_with_the_reason(made, tmp_path, damage, words):
    engine, model = made
    session, path = engine.session(), tmp_path / "a"
    session.eval([1, 2, 3])
    session.save(path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ConfigError, match=words) as caught:
        session.load(path)
    assert str(path) in str(caught.value)
    assert session.tokens == [1, 2, 3]
    session.eval([4])


def test_cut_anywhere_is_refused(made, tmp_path):
    engine, model = made
    session, path = engine.session(), tmp_path / "a"
    session.eval([1, 2, 3])
    session.save(path)
    data = path.read_bytes()
    for n in range(len(data)):
        path.write_bytes(data[:n])
        with pytest.raises(ConfigError):
            session.load(path)


def test_ids_outside_the_vocabulary(made, tmp_path):
    engine, model = made
    session, path = engine.session(), tmp_path / "a"
    session.eval([1])
    kv_file.save(path, engine._runtime.model_file, [N_VOCAB], model.contexts[1])
    with pytest.raises(ConfigError, match="outside the vocabulary"):
        session.load(path)


def test_a_longer_one_than_the_context(made, tmp_path):
    engine, model = made
    session, path = engine.session(), tmp_path / "a"
    session.eval([1] * 20)
    session.save(path)
    with pytest.raises(ContextOverflowError, match="20.*16"):
        engine.session(n_ctx=16).load(path)


def test_a_cache_of_another_size(made, tmp_path):
    engine, model = made
    session, path = engine.session(), tmp_path / "a"
    session.eval([1, 2, 3])
    session.save(path)
    path.write_bytes(edited(path.read_bytes(), n_tokens=1, n_kv=7))
    with pytest.raises(ConfigError, match=f"{path}: KV state"):
        session.load(path)
    assert session.n_past == 0
    session.eval([4])


def test_no_file(made, tmp_path):
    with pytest.raises(FileNotFoundError):
        made[0].session().load(tmp_path / "none")
    with pytest.raises(FileNotFoundError):
        made[0].session().save(tmp_path / "none" / "a")
