"""bailingmoe3: its state and what its files may say. Stock's logits are in test_archs.py."""

import functools

import numpy as np
import pytest

from moeengine import Engine
from moeengine.errors import GGUFError, UnsupportedError
from moeengine.loader.model_info import describe, recurrent_bytes
from tests.arch_models import ARCH_MODELS, prompt, write_arch
from tests.arch_parts import E, H, QType
from tests.graph.test_hybrid import error_of
from tests.graph.test_reference import load, logits
from tests.odd_values import count_refused
from tests.timelines import check_rewind_and_load

NAME = "bailingmoe3"
TOKENS = prompt().tolist()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return write_arch(tmp_path_factory.mktemp("model") / "m.gguf", NAME, quant="Q8_0")


@pytest.fixture(scope="module")
def whole(tiny):
    return logits(load(tiny), prompt(), n_ubatch=512, n_ctx=256)


def test_memory_is_counted(tiny):
    model = load(tiny)
    assert model.sizes.n_recurrent == 2 * (3 * 3 * H * 64 + H * 64 * 64)
    assert recurrent_bytes(model.file) == 8 * model.sizes.n_recurrent
    assert describe(model.file, 64).kv_bytes == model.kv_bytes(64)


@pytest.mark.parametrize("n", [0, 1, 99, 100, 150])
def test_rewind_save_and_load(tiny, whole, tmp_path, n):
    with Engine(tiny.path, n_ctx=256, n_threads=2, n_ubatch=50) as engine:
        check_rewind_and_load(engine, TOKENS, n, whole[-1], tmp_path / "a")


@pytest.mark.parametrize("key, value", [
    ("kda.gate_lower_bound", -2.0), ("swiglu_clamp_exp", 0.1), ("swiglu_clamp_shexp", 0.1), ("rope.freq_base", 500.0),
    ("expert_weights_scale", 1.0), ("rope.dimension_sections", [8, 0, 0, 0]),
])  # fmt: skip
def test_every_key_takes_effect(tmp_path, whole, key, value):
    name = "bailingmoe3-clamp" if "sections" in key else NAME
    want = logits(load(write_arch(tmp_path / "m.gguf", name, quant="Q8_0")), prompt(), n_ctx=256)
    got = logits(load(write_arch(tmp_path / "m.gguf", name, quant="Q8_0", metadata={key: value})), prompt(), n_ctx=256)
    assert (error_of(got, want)[-64:] > 1e-7).all()


@pytest.mark.parametrize("key, value, words", [
    ("kda.gate_lower_bound", None, "gate_lower_bound"), ("kda.gate_lower_bound", 0.0, "gate_lower_bound.*less than 0"),
    ("kda.safe_gate", False, "safe_gate: false is not supported"), ("kda.safe_gate", 1, "safe_gate"), ("kda.head_dim", 32, "attn_q.weight"),
    ("expert_shared_count", None, "expert_shared_count"), ("leading_dense_block_count", None, "leading_dense_block_count"),
    ("expert_gating_func", None, "expert_gating_func"), ("attention.q_lora_rank", 16, "attn_q_a.weight"),
    ("swiglu_clamp_exp", [1.0], "swiglu_clamp_exp"), ("attention.key_length_mla", None, "value_length_mla"),
])  # fmt: skip
def test_refused_with_the_key(tmp_path, key, value, words):
    with pytest.raises((GGUFError, UnsupportedError), match=words):
        load(write_arch(tmp_path / "m.gguf", NAME, metadata={key: value}))


def test_a_missing_or_odd_tensor_is_named(tiny, tmp_path):
    for name in tiny.tensors:
        if name.startswith(("blk.0.", "blk.1.")) and "exps" not in name and name != "blk.0.ssm_a":
            for wrong in (None, np.zeros((3, 5), np.float32), np.zeros(7, np.float32), np.zeros((2, 2, 2), np.float32)):
                with pytest.raises(GGUFError, match=name.removesuffix(".weight")):
                    load(write_arch(tmp_path / "m.gguf", NAME, tensors={name: wrong if wrong is None else (wrong, QType.F32)}))


def test_a_gate_a_value_is_refused(tmp_path):
    """llama.cpp has none here."""
    with pytest.raises(GGUFError, match=r"attn_gate.weight: found shape 128 x 64, expected 4 x 64"):
        load(write_arch(tmp_path / "m.gguf", NAME, tensors={"blk.1.attn_gate.weight": (np.zeros((128, E), np.float32), QType.F32)}))


def test_any_value_of_any_key_works_or_is_refused(tmp_path):
    assert count_refused(tmp_path / "a.gguf", functools.partial(write_arch, name=NAME), ARCH_MODELS[NAME].metadata) > 50
