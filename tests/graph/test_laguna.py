"""laguna: what its files may leave out, and which tensors and keys are refused. Stock's logits are in test_archs.py."""

import functools

import numpy as np
import pytest

from moeengine.errors import GGUFError
from moeengine.loader.model_info import describe
from tests.arch_models import ARCH_MODELS, prompt, write_arch
from tests.arch_parts import D, E, H, QType
from tests.graph.test_reference import load, logits
from tests.odd_values import count_refused

TOKENS = prompt()[:60]


def run(tmp_path, name="laguna", metadata=None, **tensors):
    return logits(load(write_arch(tmp_path / "m.gguf", name, metadata=metadata, tensors=tensors)), TOKENS)


def test_each_layer_keeps_its_own_window(tmp_path):
    model = load(write_arch(tmp_path / "m.gguf", "laguna"))
    assert [layer.window for layer in model.sizes.kv_layers] == [0, 40, 40]
    assert describe(model.file, 64).kv_bytes == model.kv_bytes(64)


@pytest.mark.parametrize("key, same, other", [
    ("attention.sliding_window_pattern", 4, [True, True, False]), ("rope.dimension_count_swa", D, None),
    ("rope.freq_base_swa", 10000.0, None), ("expert_gating_func", None, 1), ("expert_shared_count", 1, None),
    ("rope.scaling.factor", 32.0, 8.0), ("expert_weights_norm", True, None),
])  # fmt: skip
def test_what_a_missing_key_means(tmp_path, key, same, other):
    """`same` is what the model of the record has, or its absence; `other` changes the logits."""
    want = run(tmp_path)
    assert run(tmp_path, metadata={key: same}).tobytes() == want.tobytes()
    if key != "expert_shared_count":
        assert run(tmp_path, metadata={key: other}).tobytes() != want.tobytes()


def test_gates_a_value_that_are_those_of_the_heads(tmp_path):
    """A gate a head, repeated for its values, gives the same; softplus(ln(e - 1)) = 1."""
    whole = write_arch(tmp_path / "w.gguf", "laguna")
    wide = {}
    for il, h in enumerate((H, 6, 6)):
        name = f"blk.{il}.attn_gate.weight"
        wide[name] = np.repeat(whole.tensors[name][0], D, axis=0), QType.F32
        assert wide[name][0].shape == (h * D, E)
    assert run(tmp_path, **wide).tobytes() == run(tmp_path).tobytes()


@pytest.mark.parametrize("key, value, words", [
    ("attention.value_length", D // 2, "value_length.*expected 64"), ("leading_dense_block_count", None, "leading_dense_block_count"),
    ("rope.dimension_count_swa", D + 2, "dimension_count_swa"), ("expert_feed_forward_length", None, "expert_feed_forward_length"),
    ("expert_shared_feed_forward_length", 32, "shexp.weight: found shape 96 x 64, expected 32 x 64"),
    ("attention.sliding_window_pattern", [True], "sliding_window_pattern"),
])  # fmt: skip
def test_refused_with_the_key(tmp_path, key, value, words):
    with pytest.raises(GGUFError, match=words):
        load(write_arch(tmp_path / "m.gguf", "laguna", metadata={key: value}))


@pytest.mark.parametrize("tensor, shape", [
    ("blk.1.attn_gate.weight", (H, E)), ("blk.1.attn_gate.weight", None), ("blk.2.exp_probs_b.bias", None),
    ("blk.0.attn_q_norm.weight", None), ("blk.1.attn_q.weight", (H * D, E)), ("blk.2.ffn_up_shexp.weight", None),
])  # fmt: skip
def test_a_missing_or_misshapen_tensor_is_named(tmp_path, tensor, shape):
    value = None if shape is None else (np.zeros(shape, np.float32), QType.F32)
    with pytest.raises(GGUFError, match=tensor):
        load(write_arch(tmp_path / "m.gguf", "laguna", tensors={tensor: value}))


def test_any_value_of_any_key_works_or_is_refused(tmp_path):
    assert count_refused(tmp_path / "a.gguf", functools.partial(write_arch, name="laguna"), ARCH_MODELS["laguna"].metadata) > 50
