"""Rewriting whole files: what changes, what stays to the byte, and that nothing is left behind on failure."""

import gguf
import numpy as np
import pytest

from moeengine.errors import ConfigError, GGUFError, NumericError, SupplyError, UnsupportedError
from moeengine.loader.model_file import ModelFile
from moeengine.quantize import rewrite as rewriting
from moeengine.quantize.imatrix import read_imatrix
from moeengine.quantize.rewrite import rewrite
from tests.tiny import write_gguf, write_tiny

QType = gguf.GGMLQuantizationType


@pytest.fixture
def wide(tmp_path):
    """A qwen3moe with rows of 256, in F32."""
    return write_tiny(tmp_path / "wide.gguf", quant="F32", n_embd=256, n_ff_exp=256, n_head=4, head_dim=64)


def types_of(path):
    with ModelFile.open(path) as model:
        return {name: info.qtype for name, info in model.tensors.items()}


@pytest.mark.parametrize("qtype", ["q8_0", "q4_k", "q6_k", "q2_k", "iq2_xxs", "f16", "bf16"])
def test_matrices_change_type_and_keep_their_values(wide, tmp_path, qtype):
    out = tmp_path / "out.gguf"
    rewrite(wide.path, out, qtype)
    allowed = {"q8_0": 0.01, "q4_k": 0.1, "q6_k": 0.03, "q2_k": 0.35, "iq2_xxs": 0.4, "f16": 1e-3, "bf16": 5e-3}[qtype]
    with ModelFile.open(out) as model:
        for name in ("blk.0.ffn_gate_exps.weight", "blk.1.ffn_down_exps.weight", "blk.1.attn_q.weight"):
            info = model.tensors[name]
            assert info.qtype == QType[qtype.upper()]
            got, expected = gguf.quants.dequantize(model.raw(name), info.qtype), wide.weight(name)
            assert got.shape == expected.shape
            assert np.linalg.norm(got - expected) < allowed * np.linalg.norm(expected)
        for name in ("blk.0.attn_norm.weight", "blk.0.ffn_gate_inp.weight", "output_norm.weight"):
            assert model.tensors[name].qtype == QType.F32
            assert np.array_equal(model.raw(name).view(np.float32).ravel(), wide.weight(name).ravel())


def test_metadata_are_the_same_bytes_but_for_the_file_type(wide, tmp_path):
    out = tmp_path / "out.gguf"
    rewrite(wide.path, out, "q4_k")
    before, after = gguf.GGUFReader(wide.path).fields, gguf.GGUFReader(out).fields
    changed = {
        "general.file_type",
        "general.quantization_version",
        "GGUF.tensor_count",
        "GGUF.kv_count",
        "GGUF.version",
    }
    assert before.keys() - changed == after.keys() - changed
    for key in before.keys() - changed:
        assert b"".join(p.tobytes() for p in before[key].parts) == b"".join(p.tobytes() for p in after[key].parts), key
    assert after["general.file_type"].contents() == gguf.LlamaFileType.MOSTLY_Q4_K_S


def test_bytes_that_are_no_utf8_survive(tmp_path):
    tokens = [b"\xff\xfe", b"ok"]
    path, out = tmp_path / "odd.gguf", tmp_path / "out.gguf"
    write_gguf(
        path,
        "llama",
        {"x.tokens": tokens, "x.numbers": [1, 2, 3]},
        {"a.weight": (np.ones((2, 32), np.float32), QType.F32)},
    )
    rewrite(path, out, "q8_0")
    with ModelFile.open(out) as model:
        assert [model.metadata["x.tokens"].raw(i) for i in range(2)] == tokens


def test_narrow_rows_fall_back_to_blocks_of_32(tmp_path):
    tiny = write_tiny(tmp_path / "narrow.gguf", quant="F16")  # rows of 64
    rewrite(tiny.path, tmp_path / "out.gguf", "q4_k")
    types = types_of(tmp_path / "out.gguf")
    assert types["blk.0.ffn_up_exps.weight"] == QType.Q5_0 and types["token_embd.weight"] == QType.Q8_0


def test_head_keeps_more_bits_unless_pure(wide, tmp_path):
    rewrite(wide.path, tmp_path / "a.gguf", "q2_k")
    rewrite(wide.path, tmp_path / "b.gguf", "q2_k", pure=True)
    assert types_of(tmp_path / "a.gguf")["token_embd.weight"] == QType.Q6_K
    assert types_of(tmp_path / "b.gguf")["token_embd.weight"] == QType.Q2_K


def test_patterns_choose_types(wide, tmp_path):
    out = tmp_path / "out.gguf"
    rewrite(wide.path, out, "iq2_xxs", overrides=[(r"blk\.0\.ffn_down", "q4_k"), ("ffn_down", "q8_0")])
    types = types_of(out)
    assert [types[f"blk.{il}.ffn_down_exps.weight"] for il in (0, 1)] == [QType.Q4_K, QType.Q8_0]
    with pytest.raises(ConfigError, match="fits no tensor"):
        rewrite(wide.path, tmp_path / "x.gguf", "q4_k", overrides=[("no_such", "q8_0")])
    with pytest.raises(ConfigError, match="regular expression"):
        rewrite(wide.path, tmp_path / "x.gguf", "q4_k", overrides=[("(", "q8_0")])


def test_shards_become_one_file(tmp_path):
    tiny = write_tiny(tmp_path / "set", quant="F32", n_shards=3)
    one = write_tiny(tmp_path / "one.gguf", quant="F32")
    rewrite(tiny.path, tmp_path / "a.gguf", "q8_0")
    rewrite(one.path, tmp_path / "b.gguf", "q8_0")
    with ModelFile.open(tmp_path / "a.gguf") as a, ModelFile.open(tmp_path / "b.gguf") as b:
        assert len(a.files) == 1 and not any(key.startswith("split.") for key in a.metadata)
        assert a.tensors.keys() == b.tensors.keys()
        assert all(np.array_equal(a.raw(name), b.raw(name)) for name in a.tensors)


def test_quantized_input_is_rounded_from_its_values_and_copied_where_the_type_stays(tmp_path):
    tiny = write_tiny(tmp_path / "in.gguf", quant="Q4_K", quants={"ffn_down": "IQ2_XXS"})
    out = tmp_path / "out.gguf"
    rewrite(tiny.path, out, "iq2_xxs", pure=True)
    with ModelFile.open(tiny.path) as before, ModelFile.open(out) as after:
        name = "blk.0.ffn_down_exps.weight"
        assert np.array_equal(before.raw(name), after.raw(name))
        assert after.tensors["blk.0.ffn_up_exps.weight"].qtype == QType.IQ2_XXS


def test_small_chunks_write_the_same_file(wide, tmp_path, monkeypatch):
    rewrite(wide.path, tmp_path / "a.gguf", "q4_k")
    monkeypatch.setattr(rewriting, "CHUNK_WEIGHTS", 1000)
    rewrite(wide.path, tmp_path / "b.gguf", "q4_k")
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


def write_imatrix(path, entries):
    tensors = {}
    for name, (sums, counts) in entries.items():
        tensors[name + ".in_sum2"] = (np.asarray(sums, np.float32), QType.F32)
        tensors[name + ".counts"] = (np.asarray(counts, np.float32), QType.F32)
    write_gguf(path, "", {"general.type": "imatrix"}, tensors)


def test_importance_matrix_is_used_expert_by_expert(wide, tmp_path):
    name, rng = "blk.0.ffn_gate_exps.weight", np.random.default_rng(0)
    counts = np.arange(1, 9, dtype=np.float32)[:, None]
    means = rng.gamma(0.4, 1, (8, 256)).astype(np.float32)
    write_imatrix(tmp_path / "im.gguf", {name: (means * counts, counts)})
    read = read_imatrix(tmp_path / "im.gguf")
    assert np.allclose(read[name][:, 0], means, rtol=1e-6)
    out = tmp_path / "out.gguf"
    rewrite(wide.path, out, "iq2_xxs", imatrix=read)
    with ModelFile.open(out) as model:
        off = np.square(gguf.quants.dequantize(model.raw(name), QType.IQ2_XXS) - wide.weight(name)).mean(1)
    for il in range(8):  # each expert's error is small where its own importance is large
        assert np.corrcoef(off[il], means[il])[0, 1] < -0.2


def test_binary_importance_matrix(tmp_path):
    import struct

    name, sums = b"blk.0.attn_q.weight", np.arange(4, dtype=np.float32)
    entry = struct.pack(f"<i{len(name)}sii", len(name), name, 2, 4) + sums.tobytes()
    path = tmp_path / "im.dat"
    path.write_bytes(struct.pack("<i", 1) + entry)
    assert np.array_equal(read_imatrix(path)["blk.0.attn_q.weight"], sums.reshape(1, 1, 4) / 2)
    for n in range(len(entry) + 4):
        path.write_bytes((struct.pack("<i", 1) + entry)[:n])
        with pytest.raises(GGUFError):
            read_imatrix(path)


def leftovers(folder, *known):
    return sorted(p.name for p in folder.iterdir() if p.name not in known)


def test_failures_leave_nothing_behind(wide, tmp_path, monkeypatch):
    out = tmp_path / "out.gguf"
    out.write_bytes(b"old")
    with pytest.raises(ConfigError, match="--force"):
        rewrite(wide.path, out, "q4_k")
    with pytest.raises(ConfigError, match="the output is the input"):
        rewrite(wide.path, wide.path, "q4_k", force=True)
    with pytest.raises(ConfigError, match="belongs to another model"):
        rewrite(wide.path, out, "q4_k", force=True, imatrix={"blk.0.attn_q.weight": np.ones((1, 1, 7), np.float32)})
    with pytest.raises(UnsupportedError):
        rewrite(wide.path, out, "q9_x", force=True)
    with pytest.raises(ConfigError, match="no folder"):
        rewrite(wide.path, tmp_path / "no" / "out.gguf", "q4_k")

    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(rewriting, "quantize", interrupted)
    with pytest.raises(KeyboardInterrupt):
        rewrite(wide.path, out, "q4_k", force=True)
    assert out.read_bytes() == b"old" and leftovers(tmp_path, "wide.gguf", "out.gguf") == []
    monkeypatch.setattr(rewriting.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 10}))
    with pytest.raises(SupplyError, match="only 10 are free"):
        rewrite(wide.path, out, "q4_k", force=True)


def test_weights_that_are_not_finite_are_named(tmp_path):
    bad = np.ones((2, 256), np.float32)
    bad[1, 3] = np.inf
    write_gguf(tmp_path / "in.gguf", "llama", {}, {"blk.0.attn_q.weight": (bad, QType.F32)})
    with pytest.raises(NumericError, match="blk.0.attn_q.weight"):
        rewrite(tmp_path / "in.gguf", tmp_path / "out.gguf", "q4_k")
    assert leftovers(tmp_path, "in.gguf") == []


def test_tables_of_integers_are_copied(tmp_path):
    table = np.arange(64, dtype=np.int32).reshape(2, 32)
    write_gguf(tmp_path / "in.gguf", "llama", {}, {"blk.0.table": (table, QType.I32)})
    rewrite(tmp_path / "in.gguf", tmp_path / "out.gguf", "q8_0")
    with ModelFile.open(tmp_path / "out.gguf") as model:
        assert np.array_equal(model.raw("blk.0.table").view(np.int32), table)


def test_force_replaces(wide, tmp_path):
    out = tmp_path / "out.gguf"
    out.write_bytes(b"old")
    rewrite(wide.path, out, "q8_0", force=True)
    assert types_of(out)["blk.0.attn_q.weight"] == QType.Q8_0
