"""Latent attention: the size and the saving of its cache, many heads and long chunks, what files may say."""

import functools
import math
from types import SimpleNamespace

import numpy as np
import pytest

from moeengine import Engine
from moeengine.errors import GGUFError, MoeEngineError, UnsupportedError
from moeengine.graph.arch.deepseek2 import usual_gating
from moeengine.loader.model_info import describe
from tests.arch_models import ARCH_MODELS, prompt, write_arch
from tests.arch_parts import H, QType
from tests.graph.test_reference import load, logits
from tests.odd_values import VALUES, count_refused
from tests.tiny_weights import random_weights

N_LAYER, RANK, ROT, NOPE = 3, 64, 16, 32  # of the recipes "deepseek2" and "deepseek2-kv_b"


@pytest.fixture(params=["deepseek2", "deepseek2-kv_b"])
def tiny(request, tmp_path):
    return write_arch(tmp_path / "m.gguf", request.param, quant="Q8_0")


def test_an_absorbed_cache_is_latents_alone(tmp_path):
    absorbed = load(write_arch(tmp_path / "a.gguf", "deepseek2"))
    plain = load(write_arch(tmp_path / "b.gguf", "deepseek2-kv_b"))
    assert absorbed.sizes.kv_elements == N_LAYER * (RANK + ROT)
    assert plain.sizes.kv_elements == N_LAYER * H * (NOPE + ROT + NOPE)
    for model in (absorbed, plain):
        assert model.kv_bytes(128) == 2 * 128 * model.sizes.kv_elements
        assert describe(model.file, 128).kv_bytes == model.kv_bytes(128)


def test_sessions_rewind_and_are_saved(tiny, tmp_path):
    tokens = prompt()[:120].tolist()
    with Engine(tiny.path, n_ctx=256, n_threads=2, n_ubatch=40) as engine:
        whole = engine.logits(tokens)
        session, other = engine.session(), engine.session()
        session.eval(tokens[:100])
        session.save(tmp_path / "saved")
        other.load(tmp_path / "saved")
        for n in (100, 65, 64, 63, 1, 0):
            for s in (session, other):
                s.rewind(n)
                assert s.n_past == n
                assert np.array_equal(s.eval(tokens[n:]), whole[-1])
        n_bytes = (tmp_path / "saved").stat().st_size
        assert n_bytes < 2 * 100 * load(tiny).sizes.kv_elements + 2000


def test_a_saved_session_is_of_one_form(tmp_path):
    """What an absorbed file keeps is nothing a plain one can read."""
    paths = [write_arch(tmp_path / f"{i}.gguf", name).path for i, name in enumerate(["deepseek2", "deepseek2-kv_b"])]
    with Engine(paths[0], n_ctx=64, n_threads=1) as one, Engine(paths[1], n_ctx=64, n_threads=1) as two:
        session = one.session()
        session.eval(prompt()[:5].tolist())
        session.save(tmp_path / "saved")
        with pytest.raises(MoeEngineError, match="another model"):
            two.session().load(tmp_path / "saved")


def with_heads(n_head, rank=32, nope=32, rot=16, dim_v=32, n_embd=64):
    """Metadata and tensors that give the recipe "deepseek2-lite" another number of heads and smaller latents, quantized."""
    rng = np.random.default_rng(n_head)
    shapes = {
        "attn_q": (n_head * (nope + rot), n_embd), "attn_kv_a_mqa": (rank + rot, n_embd), "attn_k_b": (n_head, rank, nope),
        "attn_v_b": (n_head, dim_v, rank), "attn_output": (n_embd, n_head * dim_v),
    }  # fmt: skip
    made = {}
    for il in range(N_LAYER):
        for name, shape in shapes.items():
            made[f"blk.{il}.{name}.weight"] = random_weights(rng, shape, QType.Q8_0, 1 / np.sqrt(shape[-1])), QType.Q8_0
        made[f"blk.{il}.attn_kv_a_norm.weight"] = np.ones(rank, np.float32), QType.F32
    metadata = {
        "attention.head_count": n_head, "attention.kv_lora_rank": rank, "attention.key_length": rank + rot,
        "attention.value_length": rank, "attention.key_length_mla": nope + rot, "rope.dimension_count": rot,
    }  # fmt: skip
    return dict(tensors=made, metadata=metadata)


@pytest.mark.parametrize("n_head", [1, 3, 20, 129, 300])
def test_same_bytes_for_any_number_of_heads(tmp_path, n_head):
    """More than a unit of attention has rows, and numbers that no unit divides; over the borders of F16 sums and segments."""
    tiny = write_arch(tmp_path / "m.gguf", "deepseek2-lite", quant="Q8_0", **with_heads(n_head))
    tokens = np.tile(prompt(), 3)[:520]
    whole = logits(load(tiny), tokens, n_ubatch=520)
    for n_ubatch, n_threads in ((1, 3), (4, 2), (100, 1)):
        got = logits(load(tiny), tokens, n_ubatch=n_ubatch, n_threads=n_threads)
        assert got.tobytes() == whole.tobytes(), (n_ubatch, n_threads)


def test_a_chunk_goes_through_attention_in_parts(tmp_path):
    """300 heads: 54 tokens at a time. The scratch does not grow with the chunk as a query a head would."""
    tiny = write_arch(tmp_path / "m.gguf", "deepseek2-lite", quant="Q8_0", **with_heads(300))
    model, row = load(tiny), 4 * 300 * (32 + 16)
    grown = model.scratch_bytes(4096, 2048, 1) - model.scratch_bytes(4096, 1024, 1)
    assert grown < 1024 * 3 * row  # queries, results and their copies, but not the absorbed queries beside them
    tokens = np.tile(prompt(), 2)[:300]
    assert logits(model, tokens, n_ubatch=300).tobytes() == logits(model, tokens, n_ubatch=53).tobytes()


def test_first_files_of_glm_name_no_gating():
    assert usual_gating(SimpleNamespace(n_vocab=154880, n_layer=47)) == "sigmoid"
    assert usual_gating(SimpleNamespace(n_vocab=102400, n_layer=27)) == "softmax"


REFUSED = [
    ("deepseek2", "attention.kv_lora_rank", None, "kv_lora_rank.*not found"),
    ("deepseek2", "attention.kv_lora_rank", 0, "kv_lora_rank.*found the int 0.*at least|from 1"),
    ("deepseek2", "attention.kv_lora_rank", 32, "key_length.*found the int 80, expected 48.*kv_lora_rank = 32"),
    ("deepseek2", "attention.q_lora_rank", 0, "q_lora_rank.*found the int 0"),
    ("deepseek2", "attention.q_lora_rank", None, "q_lora_rank.*not found"),
    ("deepseek2", "attention.q_lora_rank", 64, r"blk.0.attn_q_a.weight: found shape 32 x 64, expected 64 x 64"),
    ("deepseek2", "attention.key_length_mla", None, "value_length_mla.*found the int 32"),
    ("deepseek2", "attention.value_length_mla", None, "value_length_mla.*found the int 0.*key_length_mla = 48"),
    ("deepseek2", "attention.value_length_mla", 16, r"blk.0.attn_v_b.weight: found shape 4 x 32 x 64, expected 4 x 16 x 64"),
    ("deepseek2", "attention.key_length_mla", 16, "rope.dimension_count.*found the int 16, expected 2 to 15"),
    ("deepseek2", "attention.key_length", 96, "key_length.*found the int 96, expected 80"),
    ("deepseek2", "attention.value_length", 80, "value_length.*found the int 80, expected 64"),
    ("deepseek2", "attention.head_count_kv", 4, "head_count_kv.*found the int 4, expected 1"),
    ("deepseek2-kv_b", "attention.head_count_kv", 2, "head_count_kv.*found the int 2, expected 4"),
    ("deepseek2-kv_b", "attention.value_length", 64, r"blk.0.attn_kv_b.weight: found shape 256 x 64, expected 384 x 64"),
    ("deepseek2-kv_b", "rope.dimension_count", 0, "rope.dimension_count.*found the int 0"),
    ("deepseek2", "rope.scaling.yarn_log_multiplier", -1 / math.log(4), "yarn_log_multiplier.*scaled by"),
    ("deepseek2", "rope.scaling.attn_factor", VALUES["most"], "attn_factor.*1000"),
    ("deepseek2", "rope.scaling.yarn_log_multiplier", VALUES["most"], "scores are scaled by inf"),
    ("deepseek2-narrow", "attention.temperature_length", 0, "temperature_length.*found the int 0"),
    ("deepseek2-narrow", "attention.temperature_length", None, "temperature_length.*not found"),
    ("deepseek2", "expert_shared_count", None, "expert_shared_count.*not found"),
    ("deepseek2", "expert_feed_forward_length", None, "expert_feed_forward_length.*not found"),
    ("deepseek2", "expert_group_count", 5, "16 experts in 5 groups"),
]  # fmt: skip


@pytest.mark.parametrize("name, key, value, words", REFUSED, ids=lambda v: str(v)[:40])
def test_keys_that_do_not_fit(tmp_path, name, key, value, words):
    path = write_arch(tmp_path / "m.gguf", name, metadata={key: value}).path
    with pytest.raises(GGUFError, match=words) as error:
        Engine(path, n_threads=1)
    assert str(path) in str(error.value)


def test_mistral4_has_one_log_multiplier(tmp_path):
    path = write_arch(tmp_path / "m.gguf", "mistral4", metadata={"rope.scaling.yarn_log_multiplier": 0.2}).path
    with pytest.raises(UnsupportedError, match="yarn_log_multiplier: 0.2.* is not supported"):
        Engine(path, n_threads=1)


@pytest.mark.parametrize("name, tensor, shape, words", [
    ("deepseek2", "attn_k_b", (H, NOPE, RANK), f"found shape {H} x {NOPE} x {RANK}, expected {H} x {RANK} x {NOPE}"),
    ("deepseek2", "attn_k_b", (H * RANK, NOPE), f"found shape {H * RANK} x {NOPE}, expected {H} x {RANK} x {NOPE}"),
    ("deepseek2", "attn_v_b", None, "missing"),
    ("deepseek2", "attn_kv_a_norm", (RANK + ROT,), f"found {RANK + ROT} values, expected {RANK}"),
    ("deepseek2", "attn_q_a_norm", None, "missing"),
    ("deepseek2", "attn_q_b", None, "missing"),
    ("deepseek2-lite", "attn_q", (8, 64), "found shape 8 x 64"),
    ("deepseek2-kv_b", "attn_kv_b", None, "missing"),
    ("deepseek2-kv_b", "attn_kv_a_mqa", (RANK, 64), f"found shape {RANK} x 64, expected {RANK + ROT} x 64"),
])  # fmt: skip
def test_tensors_that_do_not_fit(tmp_path, name, tensor, shape, words):
    value = None if shape is None else (np.zeros(shape, np.float32), QType.F32)
    path = write_arch(tmp_path / "m.gguf", name, tensors={f"blk.1.{tensor}.weight": value}).path
    with pytest.raises(GGUFError, match=rf"blk.1.{tensor}.weight: {words}") as error:
        Engine(path, n_threads=1)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("name", ["deepseek2", "deepseek2-kv_b", "deepseek2-narrow"])
def test_any_value_of_any_key_works_or_is_refused(tmp_path, name):
    keys = ARCH_MODELS[name].metadata
    write = functools.partial(write_arch, name=name)
    assert count_refused(tmp_path / "a.gguf", write, keys) > 50
