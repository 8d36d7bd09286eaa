"""retier: experts spread over tiers, with everything that belongs to them; what keeps its type is the same bytes."""

import gguf
import numpy as np
import pytest

from moeengine import Engine
from moeengine.cli import main
from moeengine.errors import ConfigError
from moeengine.kernels import dequantize
from moeengine.loader.model_file import ModelFile
from moeengine.quantize.retier import parse_tiers, retier
from tests.reference import reference_of
from tests.tiny import write_tiny

QType = gguf.GGMLQuantizationType
TOKENS = [5, 9, 200, 3, 77, 12]
N_EXPERT = 8


def make(folder, arch="qwen3moe", **options):
    options = dict(n_expert=N_EXPERT, n_expert_used=3, quant="F16", n_embd=256, n_ff_exp=256) | options
    return write_tiny(folder / "in.gguf", arch, **options)


def logits(path, **settings):
    with Engine(path, n_ctx=64, n_threads=1, **settings) as engine:
        return engine.logits(TOKENS)


def tensors_of(path):
    with ModelFile.open(path) as file:
        return {name: (info.qtype, info.shape, file.raw(name).tobytes()) for name, info in file.tensors.items()}


def test_one_tier_in_the_same_order_is_the_same_file_of_tensors(tmp_path):
    tiny = make(tmp_path)
    retier(tiny.path, tmp_path / "out.gguf", parse_tiers("rest=keep"), [])
    assert tensors_of(tmp_path / "out.gguf") == tensors_of(tiny.path)


@pytest.mark.parametrize("arch", ["qwen3moe", "qwen2moe", "olmoe", "gpt-oss"])
@pytest.mark.parametrize("fused", [False, True])
def test_renumbered_experts_compute_the_same(tmp_path, arch, fused):
    tiny = make(tmp_path, arch, fused_gate_up=fused)
    wanted = [(0, 6), (0, 2), (1, 7), (1, 1), (1, 0)]
    out = tmp_path / "out.gguf"
    parts = retier(tiny.path, out, parse_tiers("2=keep,3=keep,rest=keep"), wanted)
    assert all(p.is_copied for p in parts)
    with ModelFile.open(out) as file, ModelFile.open(tiny.path) as before:
        part = "gate_up" if fused else "up"
        order = {0: [2, 6, 0, 1, 3, 4, 5, 7], 1: [1, 7, 0, 2, 3, 4, 5, 6]}
        for il, ids in order.items():
            stems = [f"blk.{il}.ffn_{part}_exps{t}.weight" for t in ("", "_tier1", "_tier2")]
            assert [file.tensor(name).shape[0] for name in stems] == [2, 3, 3]
            got = np.concatenate([file.raw(name) for name in stems])
            assert np.array_equal(got, before.raw(f"blk.{il}.ffn_{part}_exps.weight")[ids])
            router = file.raw(f"blk.{il}.ffn_gate_inp.weight")
            assert np.array_equal(router, before.raw(f"blk.{il}.ffn_gate_inp.weight")[ids])
    expected, got = logits(tiny.path), logits(out)
    assert np.max(np.abs(got - expected)) < 1e-3 * np.max(np.abs(expected))  # sums over experts in another order
    assert np.array_equal(logits(out, moe_mode="stream", cache_mb=0), got)


def test_tiers_of_coarser_types(tmp_path):
    tiny = make(tmp_path)
    out = tmp_path / "out.gguf"
    retier(tiny.path, out, parse_tiers("2=keep,2=q8_0,2=q4_k,rest=q2_k"), [(0, 7), (0, 0), (1, 3), (1, 5)])
    with ModelFile.open(out) as file, ModelFile.open(tiny.path) as before:
        for i, (ids, qtype) in enumerate((([0, 7], "F16"), ([1, 2], "Q8_0"), ([3, 4], "Q4_K"), ([5, 6], "Q2_K"))):
            name = f"blk.0.ffn_down_exps{f'_tier{i}' if i else ''}.weight"
            assert file.tensor(name).qtype == QType[qtype]
            original = dequantize(before.raw("blk.0.ffn_down_exps.weight"), QType.F16)[ids]
            error = dequantize(file.raw(name), QType[qtype]) - original
            assert np.sqrt(np.mean(error**2)) <= {"F16": 0, "Q8_0": 0.01, "Q4_K": 0.1, "Q2_K": 0.4}[qtype] * original.std()
        kept = [n for n in before.tensors if "exps" not in n and "gate_inp" not in n]
        assert all(np.array_equal(file.raw(n), before.raw(n)) for n in kept)
    expected, got = logits(tiny.path), logits(out)
    assert np.mean((got - expected) ** 2) < 0.2 * np.mean(expected**2)


def test_a_down_bank_that_does_not_fill_a_block_is_padded(tmp_path):
    tiny = make(tmp_path, n_ff_exp=192)
    out = tmp_path / "out.gguf"
    retier(tiny.path, out, parse_tiers("4=keep,rest=q4_k"), [])
    with ModelFile.open(out) as file:
        assert file.tensor("blk.0.ffn_down_exps.weight").shape[-1] == 192
        assert file.tensor("blk.0.ffn_down_exps_tier1.weight").shape[-1] == 256
        assert not dequantize(file.raw("blk.0.ffn_down_exps_tier1.weight"), QType.Q4_K)[..., 192:].any()
    assert np.mean((logits(out) - logits(tiny.path)) ** 2) < 0.05 * np.mean(logits(tiny.path) ** 2)


def test_scales_and_biases_go_with_their_experts(tmp_path):
    rng = np.random.default_rng(3)
    more = {"blk.0.ffn_down_exps.scale": rng.random(N_EXPERT).astype(np.float32) + 0.5,
            "blk.0.ffn_up_exps.scale": np.array([1.25], np.float32),
            "blk.0.ffn_gate_exps.bias": rng.standard_normal((N_EXPERT, 256)).astype(np.float32)}  # fmt: skip
    tiny = make(tmp_path, tensors=more)
    out = tmp_path / "out.gguf"
    retier(tiny.path, out, parse_tiers("3=keep,rest=keep"), [(0, 7), (0, 4), (0, 5)])
    with ModelFile.open(out) as file:
        scale = file.raw("blk.0.ffn_down_exps_tier1.scale").view(np.float32)
        assert np.array_equal(scale.reshape(-1), more["blk.0.ffn_down_exps.scale"][[0, 1, 2, 3, 6]])
        bias = file.raw("blk.0.ffn_gate_exps.bias").view(np.float32)
        assert np.array_equal(bias, more["blk.0.ffn_gate_exps.bias"][[4, 5, 7]])
        assert file.raw("blk.0.ffn_up_exps_tier1.scale").view(np.float32).tolist() == [1.25]
    expected, got = logits(tiny.path), logits(out)
    assert np.max(np.abs(got - expected)) < 1e-3 * np.max(np.abs(expected))


def test_by_a_trace_and_by_a_list(tmp_path, capsys):
    tiny = make(tmp_path)
    saved, listed = tmp_path / "use.json", tmp_path / "list.txt"
    assert main(["trace", "-m", str(tiny.path), "-p", "abc", "-n", "20", "--save", str(saved)]) == 0
    from moeengine.supply.recorded import experts_by_use

    used = experts_by_use(saved, "--by")
    listed.write_text("".join(f"{il} {ie}\n" for il, ie in used))
    outs = [tmp_path / "a.gguf", tmp_path / "b.gguf"]
    for out, option, file in zip(outs, ("--by", "--list"), (saved, listed)):
        command = ["retier", str(tiny.path), str(out), "--tiers", "2=keep,rest=q8_0", option, str(file)]
        assert main(command) == 0
        assert "experts, F16 -> Q8_0" in capsys.readouterr().err
    assert main([*command[:-2], "--by", "missing", "--force"]) == 1
    assert "argument --by: missing: No such file" in capsys.readouterr().err
    assert outs[0].read_bytes() == outs[1].read_bytes()
    with ModelFile.open(outs[0]) as file, ModelFile.open(tiny.path) as before:
        top = sorted([ie for il, ie in used if il == 1][:2])
        assert np.array_equal(file.raw("blk.1.ffn_up_exps.weight"), before.raw("blk.1.ffn_up_exps.weight")[top])
    assert reference_of(tiny)


@pytest.mark.parametrize("text, reason", [
    ("8", "expected N=TYPE"), ("0=q8_0", "expected N=TYPE"), ("4=q8_0", "found 4 experts in all, expected 8"),
    ("9=q8_0,rest=q4_0", "found 9 experts"), ("rest=q8_0,rest=q4_0", "twice"), ("1=keep,1=keep,1=keep,1=keep,rest=keep", "at most 4"),
    ("rest=q9_9", "q9_9"),
])  # fmt: skip
def test_tiers_that_cannot_be(tmp_path, capsys, text, reason):
    tiny = make(tmp_path)
    assert main(["retier", str(tiny.path), str(tmp_path / "out.gguf"), "--tiers", text]) == 1
    assert reason.lower() in capsys.readouterr().err.lower() and not (tmp_path / "out.gguf").exists()


def test_models_that_cannot_be_retiered(tmp_path):
    tiny, out = make(tmp_path), tmp_path / "out.gguf"
    retier(tiny.path, out, parse_tiers("4=keep,rest=keep"), [])
    dense = write_tiny(tmp_path / "d.gguf", "qwen3").path
    grouped = write_tiny(tmp_path / "g.gguf", "qwen3moe", metadata={"qwen3moe.expert_group_count": 2}).path
    for model, reason in ((out, "expected no tiers yet"), (dense, "no experts"), (grouped, "2 groups")):
        with pytest.raises(ConfigError, match=reason):
            retier(model, tmp_path / "more.gguf", parse_tiers("rest=q8_0"), [])
    with pytest.raises(ConfigError, match="the output is the input"):
        retier(tiny.path, tiny.path, parse_tiers("rest=q8_0"), [], force=True)
    listed = tmp_path / "list.txt"
    listed.write_text("0 1\nnot this\n")
    assert main(["retier", str(tiny.path), str(tmp_path / "more.gguf"), "--tiers", "rest=keep", "--list", str(listed)]) == 1


@pytest.mark.parametrize("text, words", [
    ("9 0\n", "found expert 0 of layer 9"), ("0 8\n", "found expert 8 of layer 0"), ("0\n", "line 1"), ("\udcff", "expected text"),
])  # fmt: skip
def test_lists_of_another_model_or_of_nothing(tmp_path, capsys, text, words):
    listed, out = tmp_path / "list.txt", tmp_path / "out.gguf"
    listed.write_bytes(text.encode("utf-8", "surrogateescape"))
    command = ["retier", str(make(tmp_path).path), str(out), "--tiers", "2=keep,rest=keep", "--list"]
    assert main([*command, str(listed)]) == 1
    assert words in capsys.readouterr().err
    assert main([*command, "/dev/zero"]) == 1
    assert "/dev/zero: found a folder, pipe or device" in capsys.readouterr().err
    assert not out.exists()
