"""DeepSeek-V4: attention over compressed keys, hyper-connections, experts by token. Stock's logits and the same bytes of all
cuts are in test_archs.py; here the state of a timeline, and what files may say."""

import functools

import numpy as np
import pytest
from moeengine.kernels.threads import Team

from moeengine import Engine
from moeengine.errors import ConfigError, GGUFError, UnsupportedError
from moeengine.loader.model_info import describe, kv_bytes_per_token, recurrent_bytes
from tests.arch_models import ARCH_MODELS, prompt, write_arch
from tests.arch_parts import QType
from tests.graph.test_archs import RECORDS
from tests.graph.test_hybrid import error_of
from tests.graph.test_reference import load, logits
from tests.interrupt import cancel_at_random
from tests.odd_values import compute_not_finite, count_refused

NAME = "deepseek4"
TOKENS = prompt(ARCH_MODELS[NAME].n_tokens)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return write_arch(tmp_path_factory.mktemp("model") / "m.gguf", NAME, quant="Q8_0")


@pytest.fixture(scope="module")
def whole(tiny):
    return logits(load(tiny), TOKENS, n_ubatch=512, n_ctx=512)


@pytest.fixture
def engine(tiny):
    with Engine(tiny.path, n_ctx=512, n_threads=2, n_ubatch=100) as engine:
        yield engine


def test_beyond_the_first_positions_logits_equal_stock_closely(tmp_path):
    """Nearer than test_archs.py asks of all positions: below 128 both sum values in F16, which makes a last bit a thousand times
    larger. It differs since stock takes the batched product of `attn_output_a` in another order with F32 weights."""
    got = logits(load(write_arch(tmp_path / "m.gguf", NAME)), TOKENS, n_ubatch=512, n_ctx=512)
    error = error_of(got, np.load(RECORDS / f"{NAME}.npz")["logits"].astype(np.float64))
    assert error[128:].max() < 1e-7 and np.median(error[128:]) < 1e-8


@pytest.mark.parametrize("key, value", [
    ("attention.sliding_window", 31), ("attention.indexer.top_k", 15), ("attention.compress_rope_freq_base", 50000.0),
    ("rope.freq_base", 20000.0), ("rope.scaling.factor", 8.0), ("hyper_connection.sinkhorn_iterations", 1),
    ("hyper_connection.epsilon", 0.01), ("swiglu_clamp_exp", [0.9, 0.5, 0.0, 1.0]), ("swiglu_clamp_shexp", 0.7),
    ("attention.compress_ratios", [0, 4, 0, 4]), ("attention.compress_ratios", [0, 0, 128, 0]), ("expert_weights_scale", 1.0),
])  # fmt: skip
def test_every_part_takes_effect(tmp_path, whole, key, value):
    got = logits(load(write_arch(tmp_path / "m.gguf", NAME, quant="Q8_0", metadata={key: value})), TOKENS, n_ubatch=512, n_ctx=512)
    assert (error_of(got, whole)[-64:] > 1e-6).all()


def test_without_the_shared_experts_bound_it_is_that_of_the_others(tmp_path):
    bounds = [1.0, 0.5, 0.0, 1.0]
    a, b = (
        logits(load(write_arch(tmp_path / "m.gguf", NAME, metadata={"swiglu_clamp_exp": bounds, "swiglu_clamp_shexp": shared})), TOKENS[:40])
        for shared in (None, bounds)
    )
    assert np.array_equal(a, b)


def test_experts_of_the_first_layers_follow_from_the_token(tiny):
    context = load(tiny).new_context(n_ctx=64, n_ubatch=64, team=Team(2))
    context.record_routing = True
    context.forward(TOKENS[:50], 0, "none")
    for il in (0, 1):
        table = tiny.tensors[f"blk.{il}.ffn_gate_tid2eid.weight"][0]
        assert np.array_equal(context.trace[il], table[TOKENS[:50]])


def test_fewer_experts_are_the_first_of_the_table(tiny):
    context = load(tiny, n_expert_used=2).new_context(n_ctx=64, n_ubatch=64, team=Team(1))
    context.record_routing = True
    context.forward(TOKENS[:9], 0, "none")
    assert np.array_equal(context.trace[1], tiny.tensors["blk.1.ffn_gate_tid2eid.weight"][0][TOKENS[:9], :2])
    with pytest.raises(GGUFError, match="ffn_gate_tid2eid.*expected I32 64 x 4"):
        load(tiny, n_expert_used=4)


# -- the state of a timeline --------------------------------------------------------------------


@pytest.mark.parametrize("n", [0, 1, 3, 4, 99, 100, 127, 128, 131, 256, 299, 300])
def test_rewind(engine, whole, n):
    tokens = TOKENS.tolist()
    session = engine.session()
    session.eval(tokens[:300])
    session.rewind(n)
    other = session.eval(tokens[:20])
    assert np.array_equal(other, engine.logits(tokens[:n] + tokens[:20])[-1])
    session.rewind(n)
    assert np.array_equal(session.eval(tokens[n:]), whole[-1])


def test_state_of_replaced_tokens_is_never_used(engine):
    rng, session, held = np.random.default_rng(5), engine.session(), []
    for _ in range(25):
        if held and rng.random() < 0.6:
            held = held[: rng.integers(0, len(held) + 1)]
            session.rewind(len(held))
        new = rng.integers(0, 64, rng.choice([1, 2, 15, 17, 130])).tolist()
        if len(held) + len(new) <= 400:
            held = held + new
            assert np.array_equal(session.eval(new), engine.logits(held)[-1])


def test_save_and_load(tiny, engine, whole, tmp_path):
    tokens = TOKENS.tolist()
    session = engine.session()
    session.eval(tokens[:300])
    session.save(tmp_path / "a")
    session.rewind(150)
    session.save(tmp_path / "b")
    with Engine(tiny.path, n_ctx=390, n_threads=1) as other:
        loaded = other.session()
        for name, n in (("a", 300), ("b", 150), ("a", 300)):
            loaded.load(tmp_path / name)
            assert loaded.tokens == tokens[:n]
            assert np.array_equal(loaded.eval(tokens[n:]), whole[-1])
        loaded.load(tmp_path / "a")
        loaded.rewind(200)
        assert np.array_equal(loaded.eval(tokens[200:]), whole[-1])


def test_state_of_another_size_is_refused(tiny):
    context = load(tiny).new_context(n_ctx=64, n_ubatch=64, team=Team(1))
    context.forward(TOKENS[:33], 0, "none")
    state = context.kv_state(33)
    for wrong in (state[:-2], np.append(state, state[:2])):
        with pytest.raises(ConfigError, match="KV state"):
            context.set_kv_state(wrong, 33)
    context.set_kv_state(state, 33)
    assert np.array_equal(context.kv_state(33), state)


def test_cancelled_calls_leave_the_timeline_usable(engine, whole):
    tokens, session = TOKENS.tolist(), engine.session()
    assert cancel_at_random(session, tokens, 250) > 3
    assert np.array_equal(session.eval(tokens[session.n_past :]), whole[-1])


def test_memory_is_counted(tiny):
    model = load(tiny)
    n_state = 4 * 32 * 96 // 2 + 2 * 2 * 8 * 2 * (96 + 64) + 2 * 128 * 96
    assert model.sizes.n_recurrent == n_state
    assert recurrent_bytes(model.file) == 8 * n_state
    assert kv_bytes_per_token(model.file) == 2 * (2 * (24 + 16) + 1)
    assert describe(model.file, 64).kv_bytes == model.kv_bytes(64) == 64 * kv_bytes_per_token(model.file) + 8 * n_state
    assert model.new_context(n_ctx=64, n_ubatch=8, team=Team(1)).memory_bytes["kv"] == model.kv_bytes(64)


@pytest.mark.parametrize("n_ctx", [1, 3, 5, 63, 129])
def test_short_contexts(tiny, whole, n_ctx):
    """Room for as many compressed keys as can be, and no more."""
    assert np.array_equal(logits(load(tiny), TOKENS[:n_ctx], n_ubatch=512, n_ctx=n_ctx), whole[:n_ctx])


# -- what a file may say ------------------------------------------------------------------------

KEYS = [
    "attention.q_lora_rank", "attention.output_lora_rank", "attention.output_group_count", "attention.sliding_window",
    "attention.indexer.head_count", "attention.indexer.key_length", "attention.indexer.top_k", "hyper_connection.count",
    "hyper_connection.sinkhorn_iterations",
]  # fmt: skip
REFUSED = [
    *((key, value, key) for key in KEYS for value in (None, 0, -1, 1 << 31, 2.0, "x", [4, 4])),
    ("attention.compress_ratios", [0, 4, 128], "compress_ratios"), ("attention.compress_ratios", [0, 4, 128, 5], "compress_ratios.*0, 4, 128"),
    ("attention.compress_ratios", None, "compress_ratios"), ("attention.compress_ratios", 4, "compress_ratios"),
    ("attention.compress_rope_freq_base", None, "compress_rope_freq_base"), ("attention.compress_rope_freq_base", -1.0, "compress_rope_freq_base"),
    ("attention.output_group_count", 3, "output_group_count.*divisor"), ("attention.head_count_kv", 2, "head_count_kv.*expected 1"),
    ("attention.value_length", 64, "value_length.*expected 96"), ("attention.indexer.key_length", 32, "indexer.key_length.*multiple of 64"),
    ("attention.indexer.key_length", 128, "indexer"), ("hyper_connection.count", 2, "2 streams are not supported"),
    ("hyper_connection.epsilon", None, "hyper_connection.epsilon"), ("hyper_connection.epsilon", 2.0, "hyper_connection.epsilon"),
    ("hash_layer_count", None, "hash_layer_count"), ("hash_layer_count", 3, "blk.2.ffn_gate_tid2eid"),
    ("hash_layer_count", 1, "blk.1.exp_probs_b"), ("expert_gating_func", 2, "expert_gating_func.*expected 4"),
    ("expert_shared_count", None, "expert_shared_count"), ("swiglu_clamp_exp", None, "swiglu_clamp_exp"),
    ("swiglu_clamp_exp", [1.0], "swiglu_clamp_exp.*4 numbers"), ("swiglu_clamp_exp", [-1.0] * 4, "swiglu_clamp_exp"),
    ("swiglu_clamp_shexp", "x", "swiglu_clamp_shexp"), ("rope.dimension_count", 0, "rope.dimension_count"),
    ("rope.dimension_count", 31, "rope.dimension_count"), ("nextn_predict_layers", 2, "blk.3.nextn.eh_proj.weight: missing"),
]  # fmt: skip


@pytest.mark.parametrize("key, value, words", REFUSED, ids=lambda v: str(v)[:40])
def test_bad_metadata_is_refused_with_the_key(tmp_path, key, value, words):
    with pytest.raises((GGUFError, UnsupportedError), match=words):
        load(write_arch(tmp_path / "m.gguf", NAME, metadata={key: value}))


def test_a_missing_or_odd_tensor_is_named(tiny, tmp_path):
    for name in tiny.tensors:
        if name.startswith(("blk.1.", "output_hc")) and "exps" not in name and "shexp" not in name:
            for wrong in (None, np.zeros((3, 5), np.float32), np.zeros(7, np.float32), np.zeros((2, 2, 2), np.float32)):
                with pytest.raises(GGUFError, match=name.removesuffix(".weight")):
                    load(write_arch(tmp_path / "m.gguf", NAME, tensors={name: wrong if wrong is None else (wrong, QType.F32)}))


@pytest.mark.parametrize("at, value", [((0, 0), -1), ((63, 2), 8), ((5, 1), 1 << 30)])
def test_experts_that_there_are_not(tiny, tmp_path, at, value):
    name = "blk.1.ffn_gate_tid2eid.weight"
    table = tiny.tensors[name][0].copy()
    table[at] = value
    with pytest.raises(GGUFError, match=f"m.gguf.*{name}: row {at[0]}, column {at[1]}: found {value}, expected 0 to 7"):
        load(write_arch(tmp_path / "m.gguf", NAME, tensors={name: (table, QType.I32)}))


def test_any_value_of_their_own_keys_works_or_is_refused(tmp_path):
    keys = (*KEYS, "attention.compress_ratios", "hash_layer_count", "swiglu_clamp_exp", "hyper_connection.epsilon")
    write = functools.partial(write_arch, name=NAME)
    assert count_refused(tmp_path / "a.gguf", write, keys) > 40


def test_values_that_are_not_finite_do_not_crash(tiny, tmp_path):
    names = ("hc_attn_scale", "hc_ffn_base", "attn_sinks", "attn_compressor_ape", "indexer_compressor_norm", "attn_kv_a_norm")
    write = functools.partial(write_arch, name=NAME)
    compute_not_finite(tmp_path / "m.gguf", write, tiny, [f"blk.1.{part}.weight" for part in names], TOKENS[:130], n_ctx=256)