"""mimo2, step35, afmoe: models with two kinds of layers, and what their files may leave out or say otherwise."""

import numpy as np
import pytest

from moeengine.errors import GGUFError
from moeengine.loader.model_info import describe
from tests.arch_models import prompt, write_arch
from tests.arch_parts import D, E, H, QType
from tests.graph.test_reference import load, logits

TOKENS = prompt()[:60]


def run(tmp_path, name, metadata=None, **tensors):
    return logits(load(write_arch(tmp_path / "m.gguf", name, metadata=metadata, tensors=tensors)), TOKENS)


def test_each_layer_keeps_its_own_heads(tmp_path):
    for name, layers in (("mimo2", [(1, 48, 32), (2, 48, 32), (2, 48, 32), (1, 48, 32)]),
                         ("step35", [(1, D, D), (2, D, D), (2, D, D), (1, D, D)])):  # fmt: skip
        model = load(write_arch(tmp_path / "m.gguf", name))
        assert [layer[:3] for layer in model.sizes.kv_layers] == layers
        assert describe(model.file, 64).kv_bytes == model.kv_bytes(64)


@pytest.mark.parametrize("name, key, same, other", [
    ("mimo2", "rope.freq_base_swa", None, 500.0), ("mimo2", "attention.value_scale", None, 0.5),
    ("step35", "rope.freq_base_swa", None, 500.0), ("step35", "rope.dimension_count_swa", D, None),
    ("step35", "expert_gating_func", 2, 1), ("afmoe", "rope.freq_base_swa", 10000.0, 500.0), ("afmoe", "expert_gating_func", None, 1),
    ("afmoe", "attention.sliding_window_pattern", 4, 2),
])  # fmt: skip
def test_what_a_missing_key_means(tmp_path, name, key, same, other):
    """`same` is what the model of the record has, or its absence; `other` changes the logits."""
    want = run(tmp_path, name)
    if key != "attention.value_scale":
        assert run(tmp_path, name, {key: same}).tobytes() == want.tobytes()
    if other is not None:
        assert run(tmp_path, name, {key: other}).tobytes() != want.tobytes()


def test_step35_without_gates_norms_and_factors(tmp_path):
    """They are optional. A gate of 0 halves what a head gives, so twice the matrix behind it makes up for it."""
    whole = write_arch(tmp_path / "w.gguf", "step35")
    none, halves = {"rope_freqs.weight": None}, {"rope_freqs.weight": (np.ones(D // 2, np.float32), QType.F32)}
    for il, h in enumerate((H, 6, 6, H)):
        gate, out = f"blk.{il}.attn_gate.weight", f"blk.{il}.attn_output.weight"
        none |= {gate: None} | {f"blk.{il}.attn_{part}_norm.weight": None for part in "qk"}
        halves |= {f"blk.{il}.attn_{part}_norm.weight": None for part in "qk"}
        halves |= {gate: (np.zeros((h, E), np.float32), QType.F32), out: (2 * whole.tensors[out][0], QType.F32)}
    a, b = run(tmp_path, "step35", **none), run(tmp_path, "step35", **halves)
    assert np.abs(a - b).max() < 1e-3 * np.abs(a).max()


def test_afmoe_without_windows(tmp_path):
    """Every layer sees all keys; up to the window's length that is the same."""
    none = {"attention.sliding_window": None}
    tokens = TOKENS[:40]
    with_window, without = (logits(load(write_arch(tmp_path / "m.gguf", "afmoe", metadata=m)), tokens) for m in ({}, none))
    assert without.tobytes() == with_window.tobytes()
    assert run(tmp_path, "afmoe", none).tobytes() != run(tmp_path, "afmoe").tobytes()


@pytest.mark.parametrize("name, key, value, words", [
    ("mimo2", "attention.sliding_window_pattern", None, "sliding_window_pattern"),
    ("mimo2", "expert_feed_forward_length", None, "expert_feed_forward_length"),
    ("mimo2", "attention.head_count_kv", [1, 2, 3, 2, 2], "found the int 3, expected a divisor.*layer 2"),
    ("step35", "rope.dimension_count_swa", D + 2, "dimension_count_swa"),
    ("step35", "swiglu_clamp_exp", [1.0, 2.0], "swiglu_clamp_exp"),
    ("step35", "swiglu_clamp_shexp", -1.0, "swiglu_clamp_shexp"),
    ("afmoe", "expert_shared_count", None, "expert_shared_count"),
])  # fmt: skip
def test_refused_with_the_key(tmp_path, name, key, value, words):
    with pytest.raises(GGUFError, match=words):
        load(write_arch(tmp_path / "m.gguf", name, metadata={key: value}))


@pytest.mark.parametrize("name, tensor, shape", [
    ("mimo2", "blk.1.attn_sinks.weight", (H + 1,)), ("mimo2", "blk.2.attn_qkv.weight", (64, E)),
    ("step35", "blk.1.attn_gate.weight", (H, E)), ("step35", "rope_freqs.weight", (D // 4,)),
    ("step35", "blk.2.ffn_up_shexp.weight", None), ("afmoe", "blk.1.attn_gate.weight", (H, E)),
    ("afmoe", "blk.1.attn_gate.weight", None), ("afmoe", "blk.2.exp_probs_b.bias", None),
    ("afmoe", "blk.0.post_ffw_norm.weight", None), ("afmoe", "blk.0.post_attention_norm.weight", (E - 1,)),
])  # fmt: skip
def test_a_missing_or_misshapen_tensor_is_named(tmp_path, name, tensor, shape):
    value = None if shape is None else (np.zeros(shape, np.float32), QType.F32)
    with pytest.raises(GGUFError, match=tensor):
        load(write_arch(tmp_path / "m.gguf", name, tensors={tensor: value}))
