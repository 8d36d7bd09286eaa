"""Expert banks: located byte for byte, and every way in which they can fail to fit together."""

import dataclasses
import os

import gguf
import numpy as np
import pytest

from moeengine.errors import GGUFError, UnsupportedError
from moeengine.loader.banks import all_banks, layer_banks
from moeengine.loader.model_file import ModelFile
from tests.tiny import write_tiny
from tests.tiny_weights import random_weights

Q = gguf.GGMLQuantizationType
TIERS = [(3, "IQ2_XXS"), (2, "Q4_K"), (4, "Q8_0"), (1, "Q2_K")]


def banks_of(tiny, **kw):
    with ModelFile.open(tiny.path) as model:
        kw = {"n_embd": tiny.hparams["n_embd"], "n_expert_used": tiny.hparams["n_expert_used"]} | kw
        return all_banks(model, tiny.hparams["n_layer"], **kw)


def read_slice(path, where):
    _, offset, n_bytes = where
    with open(path, "rb") as file:
        file.seek(offset)
        return file.read(n_bytes)


def test_one_tier(tmp_path):
    tiny = write_tiny(tmp_path / "t.gguf", n_expert=5, quants={"ffn_up": "F16", "ffn_down": "Q4_0"})
    layers = banks_of(tiny, n_expert=5, n_ff_exp=tiny.hparams["n_ff_exp"])
    for il, layer in enumerate(layers):
        assert (layer.il, layer.n_expert, layer.n_embd, layer.n_ff_exp) == (il, 5, 64, 64) and len(
            layer.tiers
        ) == 1
        tier = layer.tiers[0]
        assert (tier.first_expert, tier.n_expert, tier.is_fused) == (0, 5, False)
        assert [bank.qtype for bank in (tier.gate, tier.up, tier.down)] == [Q.Q8_0, Q.F16, Q.Q4_0]
        for part in ("gate", "up", "down"):
            bank, raw = getattr(tier, part), tiny.tensors[f"blk.{il}.ffn_{part}_exps.weight"][0]
            assert (bank.n_rows, bank.n_cols, bank.row_bytes * 64) == (64, 64, raw[0].nbytes)
            assert bank.expert_stride == bank.expert_bytes == raw[0].nbytes
            for ie in range(5):
                assert read_slice(tiny.path, bank.slice(ie)) == raw[ie].tobytes()
            for wrong in (-1, 5):
                with pytest.raises(IndexError):
                    bank.slice(wrong)
    with pytest.raises(dataclasses.FrozenInstanceError):
        layers[0].n_expert = 6


@pytest.mark.parametrize("n_shards", [1, 4])
def test_tiers(tmp_path, n_shards):
    """Global ids count through the tiers; a wider down is padded to its type's block."""
    tiny = write_tiny(tmp_path / "t.gguf", tiers=TIERS, n_ff_exp=640, n_embd=256, n_shards=n_shards)
    with ModelFile.open(tiny.path) as model:
        for layer in all_banks(model, 2, n_embd=256, n_expert=10, n_ff_exp=640):
            assert layer.n_expert == 10 and [t.first_expert for t in layer.tiers] == [0, 3, 5, 9]
            assert [t.down.n_cols for t in layer.tiers] == [768, 768, 640, 768]
            for ie in range(10):
                tier, local = layer.locate(ie)
                assert tier.first_expert + local == ie and 0 <= local < tier.n_expert
                tail = f"_exps{f'_tier{tier.index}' if tier.index else ''}.weight"
                for part, (shard, *where) in zip(
                    ("gate", "up", "down"), layer.slices(ie), strict=True
                ):
                    raw, qtype = tiny.tensors[f"blk.{layer.il}.ffn_{part}{tail}"]
                    assert qtype == getattr(tier, part).qtype
                    assert (
                        read_slice(model.files[shard].path, (shard, *where)) == raw[local].tobytes()
                    )
            for wrong in (-1, 10):
                with pytest.raises(IndexError):
                    layer.locate(wrong)


def test_fused_is_two_halves(tmp_path):  # B065
    tiny = write_tiny(tmp_path / "t.gguf", n_expert=3, fused_gate_up=True)
    for il, layer in enumerate(banks_of(tiny, n_expert=3)):
        (tier,) = layer.tiers
        raw = tiny.tensors[f"blk.{il}.ffn_gate_up_exps.weight"][0]
        assert tier.is_fused and layer.n_ff_exp == 64 and tier.up.row_offset == 64
        for ie in range(3):
            assert read_slice(tiny.path, tier.gate.slice(ie)) == raw[ie, :64].tobytes()
            assert read_slice(tiny.path, tier.up.slice(ie)) == raw[ie, 64:].tobytes()


def test_fused_tiers(tmp_path):
    tiny = write_tiny(tmp_path / "t.gguf", tiers=[(2, "Q8_0"), (3, "Q4_K")], fused_gate_up=True)
    layer = banks_of(tiny)[1]
    raw = tiny.tensors["blk.1.ffn_gate_up_exps_tier1.weight"][0]
    assert read_slice(tiny.path, layer.slices(4)[1]) == raw[2, 256:].tobytes()


def test_dense_layers_have_none(tmp_path):
    dense = write_tiny(tmp_path / "d.gguf", "qwen3")
    with ModelFile.open(dense.path) as model:
        assert all_banks(model, 2, n_embd=64, n_expert=None) == [None, None]
    mixed = write_tiny(tmp_path / "m.gguf", n_expert=4)
    names = [
        name
        for name in mixed.tensors
        if name.startswith("blk.0.ffn_") and name != "blk.0.ffn_norm.weight"
    ]
    mixed = write_tiny(tmp_path / "m.gguf", n_expert=4, tensors=dict.fromkeys(names))
    first, second = banks_of(mixed, n_expert=4)
    assert first is None and second.n_expert == 4
    with ModelFile.open(mixed.path) as model:
        assert (
            layer_banks(model, 0, n_embd=64) is None and layer_banks(model, 1, n_embd=64) == second
        )


def test_counts_of_each_layer(tmp_path):
    tiny = write_tiny(tmp_path / "t.gguf", n_expert=[6, 3])
    assert [layer.n_expert for layer in banks_of(tiny, n_expert=6)] == [6, 3]
    assert [layer.n_expert for layer in banks_of(tiny, n_expert=[6, 3])] == [6, 3]
    for wrong, pattern in ((8, "blk.0: found 6 experts.*expected 8"), (5, "blk.0: found 6 experts.*expected 5"),
                           ([6, 4], "blk.1: found 3 experts.*expected 4"), ([6], "blk.1")):  # fmt: skip
        with pytest.raises(GGUFError, match=pattern):
            banks_of(tiny, n_expert=wrong)
    with pytest.raises(GGUFError, match="blk.1.ffn_gate_inp.weight.*3 experts.*at least 4"):
        banks_of(tiny, n_expert_used=4)


def test_many_experts(tmp_path):  # B031
    tiny = write_tiny(tmp_path / "t.gguf", n_layer=1, n_expert=896, n_embd=32, n_ff_exp=32)
    assert banks_of(tiny, n_expert=896)[0].n_expert == 896


def test_one_expert_without_its_axis(tmp_path):
    """Stock's own writer drops trailing axes of length one (leading ones, row-major)."""
    rng = np.random.default_rng(0)
    flat = {
        f"blk.0.ffn_{part}_exps.weight": (random_weights(rng, (64, 64), Q.Q8_0), Q.Q8_0)
        for part in ("gate", "up", "down")
    }
    flat["blk.0.ffn_gate_inp.weight"] = np.ones(64)
    tiny = write_tiny(tmp_path / "t.gguf", n_layer=1, n_expert=1, n_expert_used=1, tensors=flat)
    (layer,) = banks_of(tiny, n_expert=1)
    assert layer.n_expert == 1 and layer.tiers[0].down.n_rows == 64


def test_scales_and_biases(tmp_path):
    extra = {
        "blk.0.ffn_gate_exps.scale": np.ones(4), "blk.0.ffn_up_exps.scale": np.ones(1), "blk.0.ffn_down_exps.scale": np.ones(4),
        "blk.0.ffn_gate_exps.bias": np.ones((4, 64)), "blk.0.ffn_down_exps.bias": np.ones((4, 64)),
    }  # fmt: skip
    first, second = banks_of(write_tiny(tmp_path / "t.gguf", n_expert=4, tensors=extra))
    (tier,) = first.tiers
    assert (tier.gate.scale, tier.up.scale) == (
        "blk.0.ffn_gate_exps.scale",
        "blk.0.ffn_up_exps.scale",
    )
    assert (tier.gate.bias, tier.up.bias, tier.down.bias) == (
        "blk.0.ffn_gate_exps.bias",
        None,
        "blk.0.ffn_down_exps.bias",
    )
    assert second.tiers[0].gate.scale is None


def weights(shape, qtype=Q.Q8_0):
    return random_weights(np.random.default_rng(0), shape, qtype), qtype


# name: (write_tiny arguments, tensors to replace, words of the message)
MISFITS = {
    "up missing": ({}, {"blk.1.ffn_up_exps.weight": None}, ["blk.1.ffn_up_exps.weight", "not found"]),
    "gate missing": ({}, {"blk.0.ffn_gate_exps.weight": None}, ["blk.0.ffn_gate_exps.weight", "not found"]),
    "router missing": ({}, {"blk.0.ffn_gate_inp.weight": None}, ["blk.0.ffn_gate_inp.weight", "not found"]),
    "banks missing": ({}, {f"blk.0.ffn_{p}_exps.weight": None for p in ("gate", "up", "down")}, ["blk.0.ffn_down_exps.weight", "not found"]),
    "up has other experts": ({}, {"blk.0.ffn_up_exps.weight": weights((3, 64, 64))}, ["blk.0.ffn_up_exps.weight", "experts in number 3", "expected 4"]),
    "down has other experts": ({}, {"blk.0.ffn_down_exps.weight": weights((5, 64, 64))}, ["blk.0.ffn_down_exps.weight", "5", "expected 4"]),
    "router has other experts": ({}, {"blk.0.ffn_gate_inp.weight": np.ones((5, 64))}, ["blk.0.ffn_gate_inp.weight", "5 rows", "expected 4"]),
    "router has other width": ({}, {"blk.0.ffn_gate_inp.weight": np.ones((4, 32))}, ["blk.0.ffn_gate_inp.weight", "(4, 32)", "(4, 64)"]),
    "up has other width": ({}, {"blk.0.ffn_up_exps.weight": weights((4, 32, 64))}, ["blk.0.ffn_up_exps.weight", "32", "expected 64"]),
    "gate of other model width": ({}, {"blk.0.ffn_gate_exps.weight": weights((4, 64, 32))}, ["blk.0.ffn_gate_exps.weight", "rows of 32", "expected 64"]),
    "gate has other rows than the metadata": ({"n_ff_exp": 96}, {}, ["blk.0.ffn_gate_exps.weight", "96", "expected 64"]),
    "down of other model width": ({}, {"blk.0.ffn_down_exps.weight": weights((4, 96, 64))}, ["blk.0.ffn_down_exps.weight", "96", "expected 64"]),
    "down too narrow": ({}, {"blk.0.ffn_down_exps.weight": weights((4, 64, 32))}, ["blk.0.ffn_down_exps.weight", "rows of 32", "expected 64 (up to 256"]),
    "down too wide": ({}, {"blk.0.ffn_down_exps.weight": weights((4, 64, 288))}, ["blk.0.ffn_down_exps.weight", "rows of 288", "up to 256"]),
    "bank of two axes": ({}, {"blk.0.ffn_up_exps.weight": weights((64, 64))}, ["blk.0.ffn_up_exps.weight", "experts in number 1", "expected 4"]),
    "bank of four axes": ({}, {"blk.0.ffn_up_exps.weight": weights((1, 4, 64, 64))}, ["blk.0.ffn_up_exps.weight", "(1, 4, 64, 64)", "(experts, rows, columns)"]),
    "fused and separate": ({"fused_gate_up": True}, {"blk.0.ffn_up_exps.weight": weights((4, 64, 64))}, ["blk.0.ffn_up_exps.weight", "ffn_gate_up_exps", "one or the other"]),
    "fused with odd rows": ({"fused_gate_up": True}, {"blk.0.ffn_gate_up_exps.weight": weights((4, 127, 64))}, ["127", "128"]),
    "fused and separate scale": ({"fused_gate_up": True}, {"blk.0.ffn_gate_exps.scale": np.ones(4)}, ["blk.0.ffn_gate_exps.scale", "one or the other"]),
    "scale of other length": ({}, {"blk.0.ffn_up_exps.scale": np.ones(3)}, ["blk.0.ffn_up_exps.scale", "(3,)", "(4,)"]),
    "scale of other type": ({}, {"blk.0.ffn_up_exps.scale": (np.ones(4, np.float16), Q.F16)}, ["blk.0.ffn_up_exps.scale", "F16", "F32"]),
    "bias of other shape": ({}, {"blk.0.ffn_up_exps.bias": np.ones((4, 32))}, ["blk.0.ffn_up_exps.bias", "(4, 32)", "(4, 64)"]),
    "tier 0 missing": ({}, {f"blk.0.ffn_{p}_exps.weight": None for p in ("gate", "up", "down")}
                       | {f"blk.0.ffn_{p}_exps_tier1.weight": weights((4, 64, 64)) for p in ("gate", "up", "down")}, ["blk.0", "tiers 1", "tier 0 too"]),
    "tier 1 missing": ({}, {f"blk.0.ffn_{p}_exps_tier2.weight": weights((4, 64, 64)) for p in ("gate", "up", "down")}, ["blk.0", "tiers 0, 2", "tier 1 too"]),
    "tier 4": ({}, {f"blk.0.ffn_{p}_exps_tier4.weight": weights((4, 64, 64)) for p in ("gate", "up", "down")}, ["blk.0", "tiers 0, 4", "above 3"]),
    "tier without down": ({}, {f"blk.0.ffn_{p}_exps_tier1.weight": weights((2, 64, 64)) for p in ("gate", "up")}, ["blk.0.ffn_down_exps_tier1.weight", "not found"]),
    "tier with one bank": ({}, {"blk.0.ffn_up_exps_tier1.weight": weights((2, 64, 64))}, ["blk.0.ffn_gate_exps_tier1.weight", "not found"]),
    "tiers do not add up": ({}, {f"blk.0.ffn_{p}_exps_tier1.weight": weights((2, 64, 64)) for p in ("gate", "up", "down")}, ["blk.0.ffn_gate_inp.weight", "4 rows", "expected 6", "4 + 2 in 2 tiers"]),
    "tier of other width": ({}, {f"blk.0.ffn_{p}_exps_tier1.weight": weights((2, 96, 64)) for p in ("gate", "up", "down")}, ["blk.0.ffn_gate_exps_tier1.weight", "96", "expected 64"]),
}  # fmt: skip


@pytest.mark.parametrize("case", MISFITS)
def test_misfits_are_refused(tmp_path, case):
    arguments, tensors, words = MISFITS[case]
    tiny = write_tiny(tmp_path / "t.gguf", n_expert=4, tensors=tensors, **arguments)
    with pytest.raises(GGUFError) as caught:
        banks_of(tiny, n_expert=4, n_ff_exp=64)
    for word in [str(tiny.path), "expected", *words]:
        assert word in str(caught.value)


@pytest.mark.parametrize("qtype, dtype", [(Q.F64, np.float64), (Q.I32, np.int32)])
def test_types_that_are_no_weights(tmp_path, qtype, dtype):
    tensors = {"blk.0.ffn_up_exps.weight": (np.ones((4, 64, 64), dtype), qtype)}
    tiny = write_tiny(tmp_path / "t.gguf", n_expert=4, tensors=tensors)
    with pytest.raises(UnsupportedError, match=f"blk.0.ffn_up_exps.weight.*{qtype.name}"):
        banks_of(tiny)


def test_every_slice_lies_in_the_file(tmp_path):  # B004
    tiny = write_tiny(tmp_path / "t.gguf", tiers=TIERS)
    size = os.path.getsize(tiny.path)
    ends = [
        offset + n
        for layer in banks_of(tiny)
        for ie in range(10)
        for _, offset, n in layer.slices(ie)
    ]
    assert max(ends) <= size and max(ends) > size - 32


def test_a_layer_far_out_is_only_a_missing_layer(tmp_path):  # B030
    tiny = write_tiny(tmp_path / "t.gguf")
    with ModelFile.open(tiny.path) as model:
        assert layer_banks(model, 10**9, n_embd=64) is None
        with pytest.raises(GGUFError, match="27 tensors.*1000000000 layers"):
            all_banks(model, 10**9, n_embd=64)
