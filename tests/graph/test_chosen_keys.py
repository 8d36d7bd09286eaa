"""Latent attention to chosen positions: sessions, memory, what the choice does, and what files may say. Stock's logits and the
same bytes of all cuts are in test_archs.py."""

import functools

import numpy as np
import pytest

from moeengine import Engine
from moeengine.errors import GGUFError, UnsupportedError
from moeengine.loader.model_info import describe, kv_bytes_per_token
from tests.arch_models import ARCH_MODELS, prompt, write_arch
from tests.arch_parts import QType
from tests.graph.test_reference import load, logits
from tests.indexed_models import DIM, RANK, ROT
from tests.interrupt import cancel_at_random
from tests.odd_values import compute_not_finite, count_refused
from tests.timelines import check_rewind_and_load

TOKENS = prompt(192)
TYPES = "attention.indexer.types"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return write_arch(tmp_path_factory.mktemp("model") / "m.gguf", "glm-dsa", quant="Q8_0")


@pytest.fixture(scope="module")
def whole(tiny):
    return logits(load(tiny), TOKENS, n_ubatch=512, n_ctx=256)


@pytest.fixture
def engine(tiny):
    with Engine(tiny.path, n_ctx=256, n_threads=2, n_ubatch=50) as engine:
        yield engine


def run(tmp_path, name="glm-dsa", metadata=None, tokens=TOKENS, **tensors):
    tiny = write_arch(tmp_path / "m.gguf", name, quant="Q8_0", metadata=metadata, tensors=tensors)
    return logits(load(tiny), tokens, n_ubatch=512, n_ctx=256)


def test_who_sees_no_more_than_it_may_has_no_choice(tmp_path, whole):
    """Tokens before the 40th attend to all positions whatever the indexer says; those behind do not."""
    other = run(tmp_path, metadata={"attention.indexer.top_k": 256})
    assert other[:40].tobytes() == whole[:40].tobytes()
    assert (np.abs(other[41:] - whole[41:]).max(-1) > 1e-3).all()
    zeros = {f"blk.{il}.indexer.proj.weight": (np.zeros((16, 64), np.float32), QType.F32) for il in (0, 2)}
    first = run(tmp_path, **zeros)  # all score the same: the first positions are taken
    assert first[:40].tobytes() == whole[:40].tobytes() and not np.array_equal(first[60], whole[60])


def test_a_layer_without_an_indexer_takes_the_choice_before_it(tmp_path):
    """The same indexer on the same input in both layers would choose the same, which only layers of no effect have."""
    tiny = write_arch(tmp_path / "m.gguf", "glm-dsa")
    none = {"blk.0.attn_output.weight": tiny.tensors["blk.0.attn_output.weight"][0] * 0,
            "blk.0.ffn_down.weight": tiny.tensors["blk.0.ffn_down.weight"][0] * 0,
            "blk.1.attn_norm.weight": tiny.tensors["blk.0.attn_norm.weight"][0],
            "blk.1.attn_q_a.weight": tiny.tensors["blk.0.attn_q_a.weight"][0],
            "blk.1.attn_q_a_norm.weight": tiny.tensors["blk.0.attn_q_a_norm.weight"][0]}  # fmt: skip
    own = {name.replace("blk.0", "blk.1"): value[0] for name, value in tiny.tensors.items() if name.startswith("blk.0.indexer")}
    shared, twice = (
        logits(load(write_arch(tmp_path / "m.gguf", "glm-dsa", metadata={TYPES: types},
                               tensors={name: (value, QType.F32) for name, value in values.items()})), TOKENS)
        for types, values in (([True, False, True], none), ([True, True, True], none | own))
    )  # fmt: skip
    assert shared.tobytes() == twice.tobytes()


def test_which_layers_have_one_where_the_file_does_not_say(tmp_path):
    with pytest.raises(GGUFError, match="blk.1.indexer.attn_k.weight: missing"):
        load(write_arch(tmp_path / "m.gguf", "glm-dsa", metadata={TYPES: None}))
    with pytest.raises(GGUFError, match="blk.1.indexer.attn_k.weight: missing"):  # two, then every fourth
        load(write_arch(tmp_path / "m.gguf", "glm-dsa", metadata={TYPES: None, "context_length": 1 << 20}))
    with pytest.raises(GGUFError, match="indexer.types.*layer 0"):
        load(write_arch(tmp_path / "m.gguf", "glm-dsa", metadata={TYPES: [False, True, True]}))


@pytest.mark.parametrize("n", [0, 1, 39, 40, 41, 63, 64, 150])
def test_rewind_save_and_load(engine, whole, tmp_path, n):
    check_rewind_and_load(engine, TOKENS.tolist(), n, whole[-1], tmp_path / "a")


def test_cancelled_calls_leave_the_timeline_usable(engine, whole):
    tokens, session = TOKENS.tolist(), engine.session()
    assert cancel_at_random(session, tokens, 150) > 3
    assert np.array_equal(session.eval(tokens[session.n_past :]), whole[-1])


def test_memory_is_counted(tiny, tmp_path):
    model = load(tiny)
    assert kv_bytes_per_token(model.file) == 2 * model.sizes.kv_elements == 2 * (3 * (RANK + ROT) + 2 * DIM)
    assert describe(model.file, 64).kv_bytes == model.kv_bytes(64)
    assert model.scratch_bytes(40, 40, 1) < model.scratch_bytes(41, 40, 1) - 4 * 40 * 40  # a choice needs room
    every = load(write_arch(tmp_path / "m.gguf", "deepseek32"))
    assert describe(every.file, 64).kv_bytes == every.kv_bytes(64) == 64 * 2 * 3 * (RANK + ROT + DIM)


@pytest.mark.parametrize("n_ctx", [1, 39, 40, 41, 63, 129])
def test_short_contexts(tiny, whole, n_ctx):
    assert np.array_equal(logits(load(tiny), TOKENS[:n_ctx], n_ubatch=512, n_ctx=n_ctx), whole[:n_ctx])


KEYS = ["attention.indexer.head_count", "attention.indexer.key_length", "attention.indexer.top_k"]
REFUSED = [
    *(("glm-dsa", key, value, key) for key in KEYS for value in (None, 0, -1, 1 << 31, 2.0, "x", [4, 4])),
    *(("glm-dsa", TYPES, value, TYPES) for value in ([True], 2, "x", [1.0, 1.0, 1.0])),
    ("glm-dsa", "attention.indexer.key_length", 96, "multiple of 64"), ("glm-dsa", "attention.key_length_mla", None, "value_length_mla"),
    ("deepseek32", "expert_gating_func", None, "expert_gating_func"), ("deepseek32", "attention.q_lora_rank", None, "q_lora_rank"),
    ("glm-dsa", "rope.scaling.yarn_log_multiplier", 0.1, "yarn_log_multiplier: 0.1.* is not supported"),
]  # fmt: skip


@pytest.mark.parametrize("name, key, value, words", REFUSED, ids=lambda v: str(v)[:40])
def test_bad_metadata_is_refused_with_the_key(tmp_path, name, key, value, words):
    with pytest.raises((GGUFError, UnsupportedError), match=words):
        load(write_arch(tmp_path / "m.gguf", name, metadata={key: value}))


@pytest.mark.parametrize("name", ["glm-dsa", "deepseek32"])
def test_a_file_without_absorbed_latents_is_refused(tmp_path, name):
    keys = {"attention.key_length_mla": None, "attention.value_length_mla": None, "attention.key_length": 48,
            "attention.value_length": 32, "attention.head_count_kv": 4}  # fmt: skip
    with pytest.raises(GGUFError, match="key_length_mla.*absorbed"):
        load(write_arch(tmp_path / "m.gguf", name, metadata=keys))


def test_a_missing_or_odd_tensor_is_named(tiny, tmp_path):
    for name in (name for name in tiny.tensors if name.startswith("blk.0.indexer")):
        for wrong in (None, np.zeros((3, 5), np.float32), np.zeros(7, np.float32), np.zeros((2, 2, 2), np.float32)):
            with pytest.raises(GGUFError, match=name):
                load(write_arch(tmp_path / "m.gguf", "glm-dsa", tensors={name: wrong if wrong is None else (wrong, QType.F32)}))


def test_queries_without_latents_are_refused(tmp_path):
    with pytest.raises(GGUFError, match="attn_q.weight: found whole queries"):
        load(write_arch(tmp_path / "m.gguf", "glm-dsa", tensors={"blk.0.attn_q.weight": (np.zeros((192, 64), np.float32), QType.F32)}))


@pytest.mark.parametrize("name", ["glm-dsa", "deepseek32"])
def test_any_value_of_any_key_works_or_is_refused(tmp_path, name):
    assert count_refused(tmp_path / "a.gguf", functools.partial(write_arch, name=name), ARCH_MODELS[name].metadata) > 50


def test_values_that_are_not_finite_do_not_crash(tmp_path):
    names = ("indexer.k_norm.weight", "indexer.k_norm.bias", "indexer.proj.weight", "indexer.attn_q_b.weight")
    write = functools.partial(write_arch, name="glm-dsa")
    compute_not_finite(tmp_path / "m.gguf", write, write(tmp_path / "a.gguf"), [f"blk.0.{name}" for name in names], TOKENS[:130],
                       n_ctx=256)