"""hy_v4: the state of a timeline, what each part does, and what its files may say. Stock's logits are in test_archs.py."""

import functools

import numpy as np
import pytest

from moeengine import Engine
from moeengine.errors import GGUFError, UnsupportedError
from moeengine.loader.model_info import describe
from tests.arch_models import ARCH_MODELS, prompt, write_arch
from tests.arch_parts import QType
from tests.graph.test_hybrid import error_of
from tests.graph.test_reference import load, logits
from tests.indexed_models import DIM, RANK, ROT
from tests.odd_values import count_refused
from tests.timelines import check_rewind_and_load

NAME = "hy_v4"
TOKENS = prompt().tolist()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return write_arch(tmp_path_factory.mktemp("model") / "m.gguf", NAME, quant="Q8_0")


@pytest.fixture(scope="module")
def whole(tiny):
    return logits(load(tiny), prompt(), n_ubatch=512, n_ctx=256)


@pytest.mark.parametrize("n", [0, 1, 40, 41, 150])
def test_rewind_save_and_load(tiny, whole, tmp_path, n):
    with Engine(tiny.path, n_ctx=256, n_threads=2, n_ubatch=50) as engine:
        check_rewind_and_load(engine, TOKENS, n, whole[-1], tmp_path / "a")


def test_memory_is_counted(tiny, tmp_path):
    model, every = load(tiny), load(write_arch(tmp_path / "m.gguf", "hy_v4-all"))
    assert describe(model.file, 64).kv_bytes == model.kv_bytes(64) == 64 * 2 * (3 * (RANK + ROT) + 2 * DIM)
    assert describe(every.file, 64).kv_bytes == every.kv_bytes(64) == 64 * 2 * 3 * (RANK + ROT)


@pytest.mark.parametrize("key, value", [
    ("attention.indexer.top_k", 39), ("hyper_connection.magnitude", 1.5), ("hyper_connection.epsilon", 0.01),
    ("swiglu_clamp_exp", [0.0, 0.5, 0.0]), ("expert_weights_scale", 1.0), ("rope.freq_base", 500.0),
])  # fmt: skip
def test_every_part_takes_effect(tmp_path, whole, key, value):
    got = logits(load(write_arch(tmp_path / "m.gguf", NAME, quant="Q8_0", metadata={key: value})), prompt(), n_ubatch=512, n_ctx=256)
    assert (error_of(got, whole)[-64:] > 1e-8).all()


def test_a_choice_among_all_is_none(tmp_path, whole):
    got = logits(load(write_arch(tmp_path / "m.gguf", NAME, quant="Q8_0", metadata={"attention.indexer.top_k": 192})), prompt(), n_ctx=256)
    none = {"attention.indexer.top_k": None}
    want = logits(load(write_arch(tmp_path / "m.gguf", NAME, quant="Q8_0", metadata=none)), prompt(), n_ctx=256)
    assert got.tobytes() == want.tobytes() and got[:40].tobytes() == whole[:40].tobytes()


@pytest.mark.parametrize("key, value, words", [
    ("hyper_connection.count", 2, "2 streams are not supported"), ("hyper_connection.magnitude", None, "magnitude"),
    ("hyper_connection.magnitude", -1.0, "magnitude"), ("hyper_connection.epsilon", 2.0, "epsilon"),
    ("attention.indexer.types", None, "indexer.types"), ("attention.indexer.types", [False, True, True], "indexer.types.*layer 0"),
    ("attention.indexer.types", [True, True, True], "blk.1.indexer.attn_k.weight: missing"),
    ("attention.indexer.key_length", ROT, "key_length.*more than"), ("attention.indexer.head_count", None, "head_count"),
    ("attention.q_lora_rank", 0, "q_lora_rank"), ("attention.key_length_mla", None, "value_length_mla"),
    ("expert_shared_count", None, "expert_shared_count"), ("expert_gating_func", None, "expert_gating_func"),
    ("swiglu_clamp_exp", [1.0], "swiglu_clamp_exp"), ("expert_feed_forward_length", None, "expert_feed_forward_length"),
])  # fmt: skip
def test_refused_with_the_key(tmp_path, key, value, words):
    with pytest.raises((GGUFError, UnsupportedError), match=words):
        load(write_arch(tmp_path / "m.gguf", NAME, metadata={key: value}))


def test_a_missing_or_odd_tensor_is_named(tiny, tmp_path):
    for name in tiny.tensors:
        if name.startswith(("blk.0.", "output")) and name not in ("output_norm.weight",):
            for wrong in (None, np.zeros((3, 5), np.float32), np.zeros(7, np.float32), np.zeros((2, 2, 3), np.float32)):
                with pytest.raises(GGUFError, match=name.removesuffix(".weight")):
                    load(write_arch(tmp_path / "m.gguf", NAME, tensors={name: wrong if wrong is None else (wrong, QType.F32)}))


def test_any_value_of_any_key_works_or_is_refused(tmp_path):
    assert count_refused(tmp_path / "a.gguf", functools.partial(write_arch, name=NAME), ARCH_MODELS[NAME].metadata) > 50
