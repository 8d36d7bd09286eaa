"""gemma4: what the tests of all architectures do not reach."""

import numpy as np
import pytest

from moeengine import Engine
from moeengine.errors import GGUFError, UnsupportedError
from moeengine.loader.model_info import describe, kv_bytes_per_token
from tests.arch_models import prompt, weights_crc, write_arch
from tests.arch_parts import D, E, K, QType, X
from tests.graph.test_archs import RECORDS
from tests.graph.test_reference import assert_same_bytes_everywhere, load, logits

NAME = "gemma4"
TOKENS = prompt()[:60]


def with_keys(tmp_path, metadata=None, name=NAME, **tensors):
    return write_arch(tmp_path / "m.gguf", name, metadata=metadata, tensors=tensors)


def test_without_experts_logits_equal_stock(tmp_path):
    tiny, record = with_keys(tmp_path, name="gemma4-dense"), np.load(RECORDS / "gemma4-dense.npz")
    assert weights_crc(tiny) == record["crc"], "other weights than were recorded; see tools/record_archs.py"
    got, want = logits(load(tiny), prompt(), n_ubatch=512, n_ctx=256), record["logits"].astype(np.float64)
    error = ((got - want) ** 2).mean(-1) / want.var(-1)
    assert error.max() < 1e-7 and (got.argmax(-1) == want.argmax(-1)).all()
    assert_same_bytes_everywhere(tiny, prompt())


def test_layers_keep_heads_of_their_own_size(tmp_path):
    model = load(with_keys(tmp_path))
    assert model.sizes.kv_layers == [(K, D // 2, D // 2, 40), (1, D, D, 0)] * 2
    assert model.kv_bytes(64) == 64 * kv_bytes_per_token(model.file) == describe(model.file, 64).kv_bytes


def test_values_that_are_keys(tmp_path):
    """The last layer has no `attn_v`: the same as one that is a copy of `attn_k`."""
    without = with_keys(tmp_path)
    want = logits(load(without), TOKENS)
    copied = with_keys(tmp_path, **{"blk.3.attn_v.weight": without.tensors["blk.3.attn_k.weight"]})
    assert logits(load(copied), TOKENS).tobytes() == want.tobytes()


def test_optional_parts(tmp_path):
    """An output scale of 1 may be left out, gate and up may be apart, and without a key the logits are capped at 30."""
    ones = {"blk.1.layer_output_scale.weight": (np.ones(1, np.float32), QType.F32)}
    want = logits(load(with_keys(tmp_path, {"final_logit_softcapping": 30.0}, **ones)), TOKENS)
    whole = with_keys(tmp_path)
    parts = dict.fromkeys(("blk.1.layer_output_scale.weight", "blk.2.ffn_gate_up_exps.weight"))
    fused, qtype = whole.tensors["blk.2.ffn_gate_up_exps.weight"]
    halves = np.split(fused, 2, axis=1)
    parts |= {f"blk.2.ffn_{part}_exps.weight": (np.ascontiguousarray(half), qtype) for part, half in zip(("gate", "up"), halves)}
    got = logits(load(with_keys(tmp_path, {"final_logit_softcapping": None}, **parts)), TOKENS)
    assert got.tobytes() == want.tobytes()


def test_the_routers_guess_is_its_own_row(tmp_path):
    """Hints of later layers' experts come from the router's norm: the guess for the next layer is mostly right."""
    tiny = write_arch(tmp_path / "m.gguf", NAME, quant="Q8_0")
    with Engine(tiny.path, n_ctx=256, n_threads=1, moe_mode="stream", cache_mb=0.1, force_cache=True, prefetch_layers=1) as ahead:
        with Engine(tiny.path, n_ctx=256, n_threads=1, moe_mode="mmap") as plain:
            assert ahead.logits(TOKENS, ubatch=1).tobytes() == plain.logits(TOKENS, ubatch=1).tobytes()


@pytest.mark.parametrize("key, value, error, words", [
    ("embedding_length_per_layer_input", 256, UnsupportedError, "embedding_length_per_layer_input.*E2B, E4B"),
    ("attention.shared_kv_layers", 2, UnsupportedError, "shared_kv_layers.*E2B, E4B"),
    ("attention.value_length_swa", D, GGUFError, f"value_length_swa.*found {D}, expected {D // 2}"),
    ("attention.value_length", D // 2, GGUFError, f"value_length.*found {D // 2}, expected {D}"),
    ("rope.dimension_count_swa", D, GGUFError, "dimension_count_swa"),
    ("rope.dimension_count_swa", 7, GGUFError, "found 7, expected an even number"),
    ("attention.sliding_window", None, GGUFError, "sliding_window"),
    ("attention.sliding_window_pattern", None, GGUFError, "sliding_window_pattern"),
    ("attention.sliding_window_pattern", 2, GGUFError, "sliding_window_pattern"),
])  # fmt: skip
def test_refused_with_the_key(tmp_path, key, value, error, words):
    with pytest.raises(error, match=words):
        load(with_keys(tmp_path, {key: value}))


@pytest.mark.parametrize("name, shape", [
    ("rope_freqs.weight", None), ("blk.1.ffn_gate_inp.scale", None), ("blk.1.ffn_gate_inp.scale", (X,)),
    ("blk.1.post_ffw_norm_1.weight", None), ("blk.1.post_ffw_norm_2.weight", (E + 1,)), ("blk.1.pre_ffw_norm_2.weight", None),
    ("blk.1.post_attention_norm.weight", None), ("blk.1.post_ffw_norm.weight", (1,)), ("blk.1.layer_output_scale.weight", (2,)),
    ("blk.1.attn_k.weight", None), ("blk.0.attn_v.weight", (K * D, E)), ("blk.1.ffn_down_exps.scale", (2,)),
])  # fmt: skip
def test_a_missing_or_misshapen_tensor_is_named(tmp_path, name, shape):
    with pytest.raises(GGUFError, match=name):
        load(with_keys(tmp_path, **{name: None if shape is None else (np.zeros(shape, np.float32), QType.F32)}))
