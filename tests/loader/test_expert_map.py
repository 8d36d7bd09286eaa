"""The expert map: what is written, and that every map but the file's own is refused with the reason."""

import os
import shutil
import struct

import numpy as np
import pytest

from moeengine import Engine
from moeengine.cli import main
from moeengine.errors import ConfigError
from moeengine.loader.expert_map import check_map, from_bytes, map_of, to_bytes, write_map
from moeengine.loader.model_file import ModelFile
from tests.tiny import write_tiny

N_LAYER, N_EXPERT = 3, 8


@pytest.fixture
def path(tmp_path):
    return write_tiny(tmp_path / "m.gguf", "qwen3moe", n_layer=N_LAYER).path


def test_layout_by_hand(path, tmp_path):
    """Read with struct alone, against the tensors' own offsets."""
    out = tmp_path / "map"
    assert main(["expert-map", str(path), "-o", str(out)]) == 0
    data, status = out.read_bytes(), os.stat(path)
    assert data[:8] == b"WEEPF001"
    assert struct.unpack_from("<4Q", data, 8) == (status.st_size, status.st_dev, status.st_ino, status.st_mtime_ns)
    assert struct.unpack_from("<I", data, 40) == (N_LAYER,)
    at = 44
    with ModelFile.open(path) as file:
        for il in range(N_LAYER):
            assert struct.unpack_from("<I", data, at) == (N_EXPERT,)
            at += 4
            for ie in range(N_EXPERT):
                for part in ("gate", "up", "down"):
                    info = file.tensor(f"blk.{il}.ffn_{part}_exps.weight")
                    n = info.n_bytes // N_EXPERT
                    assert struct.unpack_from("<2Q", data, at) == (info.offset + ie * n, n)
                    at += 16
    assert at == len(data)


def test_a_map_of_the_open_file_is_taken(path, tmp_path):
    out = tmp_path / "map"
    assert main(["expert-map", str(path), "-o", str(out)]) == 0
    tokens = [1, 2, 3]
    with Engine(path, n_ctx=32) as engine:
        expected = engine.logits(tokens)
    for mode in ("mmap", "stream"):
        with Engine(path, n_ctx=32, moe_mode=mode, expert_map=str(out)) as engine:
            assert np.array_equal(engine.logits(tokens), expected)


def test_fused_and_tiered_banks_and_layers_without_experts(tmp_path):
    for i, options in enumerate((dict(fused_gate_up=True), dict(tiers=[(5, "Q8_0"), (3, "Q4_0")]), dict(arch="olmoe"))):
        model = write_tiny(tmp_path / f"{i}.gguf", **{"arch": "qwen3moe"} | options).path
        with ModelFile.open(model) as file:
            found = map_of(file)
            again = from_bytes(to_bytes(found), "x")
        assert again.identity == found.identity
        assert all(np.array_equal(a, b) for a, b in zip(again.layers, found.layers))


def altered(data, at, form, value):
    data = bytearray(data)
    struct.pack_into(form, data, at, value)
    return bytes(data)


REFUSALS = {
    "empty": (lambda d: b"", "found 0 bytes, expected at least 44"),
    "header cut": (lambda d: d[:43], "found 43 bytes"),
    "magic": (lambda d: b"WEEPF002" + d[8:], "WEEPF002.*expected b'WEEPF001'"),
    "size": (lambda d: altered(d, 8, "<Q", 1 << 40), "found size 1099511627776, expected"),
    "device": (lambda d: altered(d, 16, "<Q", 99), "found device 99, expected"),
    "inode": (lambda d: altered(d, 24, "<Q", 99), "found inode 99, expected"),
    "time": (lambda d: altered(d, 32, "<Q", 99), "found modification time 99, expected"),
    "layers, more": (lambda d: altered(d, 40, "<I", N_LAYER + 1), "0 bytes for layer 3.*truncated"),
    "layers, many": (lambda d: altered(d, 40, "<I", 2**32 - 1), "found 4294967295 layers"),
    "layers, fewer": (lambda d: altered(d, 40, "<I", N_LAYER - 1), "trailing bytes"),
    "experts, many": (lambda d: altered(d, 44, "<I", 2**32 - 1), "4294967295 experts in layer 0.*truncated"),
    "cut in a layer": (lambda d: d[:-1], "experts in layer 2.*truncated"),
    "trailing": (lambda d: d + b"\0", "found 1 trailing byte"),
    "offset": (lambda d: altered(d, 48, "<Q", 2**64 - 1), "layer 0, expert 0, gate, expected a range inside"),
    "length": (lambda d: altered(d, 56, "<Q", 2**64 - 1), "layer 0, expert 0, gate, expected a range inside"),
    "one byte past": (lambda d: altered(d, 48, "<Q", struct.unpack_from("<Q", d, 8)[0]), "expected a range inside"),
    "another range": (lambda d: altered(d, 48, "<Q", 64), r"at 64 for layer 0, expert 0, gate, expected \d+ at"),
    "another length": (lambda d: altered(d, 56, "<Q", 64), "found 64 bytes at .* layer 0, expert 0, gate"),
}


@pytest.mark.parametrize("change, reason", REFUSALS.values(), ids=REFUSALS)
def test_refused_with_the_reason(path, tmp_path, capsys, change, reason):
    out = tmp_path / "map"
    with ModelFile.open(path) as file:
        out.write_bytes(change(to_bytes(map_of(file))))
    with pytest.raises(ConfigError, match=reason):
        Engine(path, n_ctx=32, expert_map=str(out))
    assert main(["generate", "-m", str(path), "-p", "a", "-n", "1", "--expert-map", str(out)]) == 1
    assert capsys.readouterr().err.startswith("moeengine: expert map ")


def test_a_model_that_changed_since(path, tmp_path):
    out = tmp_path / "map"
    assert main(["expert-map", str(path), "-o", str(out)]) == 0
    copy = shutil.copy(path, tmp_path / "copy.gguf")
    with ModelFile.open(copy) as file, pytest.raises(ConfigError, match="found inode"):
        check_map(out, file)
    os.utime(path, ns=(1, 1))
    with ModelFile.open(path) as file, pytest.raises(ConfigError, match="found modification time"):
        check_map(out, file)
    with open(path, "ab") as file:
        file.write(b"\0")
    with ModelFile.open(path) as file, pytest.raises(ConfigError, match="found size"):
        check_map(out, file)


def test_other_numbers_of_layers_and_experts(path, tmp_path):
    out = tmp_path / "map"
    with ModelFile.open(path) as file:
        own = map_of(file)
        for layers, reason in ((own.layers[:2], "found 2 layers, expected 3"),
                               ([*own.layers[:2], own.layers[2][:-1]], "found 7 experts in layer 2, expected 8")):  # fmt: skip
            write_map(out, type(own)(own.identity, layers))
            with pytest.raises(ConfigError, match=reason):
                check_map(out, file)


def test_what_cannot_be_mapped(tmp_path, path, capsys):
    shards = write_tiny(tmp_path / "s.gguf", "qwen3moe", n_shards=3).path
    dense = write_tiny(tmp_path / "d.gguf", "qwen3").path
    for model, reason in ((shards, "set of 3 files"), (dense, "found no experts"), (tmp_path / "none", "no such file")):
        assert main(["expert-map", str(model), "-o", str(tmp_path / "out")]) == 1
        assert reason in capsys.readouterr().err and not (tmp_path / "out").exists()
    assert main(["expert-map", str(path), "-o", str(path)]) == 1
    assert "--force" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="No such file"), ModelFile.open(path) as file:
        check_map(tmp_path / "none", file)


def test_any_damage_is_a_refusal_and_nothing_else(path):
    """Bytes changed, cut and added at random: a ConfigError, or a map that says what the bytes say."""
    with ModelFile.open(path) as file:
        data = to_bytes(map_of(file))
    rng = np.random.default_rng(7)
    n_refused = 0
    for _ in range(3000):
        damaged = bytearray(data[: rng.integers(0, len(data) + 1)] if rng.random() < 0.3 else data)
        for _ in range(rng.integers(0, 4)):
            if damaged:
                at = rng.integers(0, min(len(damaged), 64) if rng.random() < 0.5 else len(damaged))
                damaged[at] = rng.choice([0, 1, 127, 128, 255, int(rng.integers(256))])
        if rng.random() < 0.1:
            damaged += rng.bytes(int(rng.integers(1, 60)))
        try:
            found = from_bytes(bytes(damaged), "x")
        except ConfigError:
            n_refused += 1
        else:
            assert to_bytes(found) == bytes(damaged)
    assert 500 < n_refused < 3000
