"""Models with recurrent layers: recorded logits of stock llama.cpp, the state of a timeline, and what their files may say."""

import functools

import numpy as np
import pytest
from moeengine.kernels.threads import Team

from moeengine import Engine
from moeengine.errors import CancelledError, ConfigError, GGUFError, MoeEngineError
from moeengine.loader.model_info import describe, kv_bytes_per_token, recurrent_bytes
from tests.arch_models import prompt, weights_crc, write_arch
from tests.graph.test_archs import RECORDS
from tests.graph.test_reference import assert_same_bytes_everywhere, load, logits
from tests.hybrid import HYBRID_MODELS, write_hybrid
from tests.interrupt import cancel_at_random
from tests.odd_values import count_refused

ARCHS = ("qwen35moe", "qwen35", "qwen3next")
SMALL = dict(n_embd=64, n_ff=64, head_dim=16, n_rot=16, dim=16, types={"": "Q8_0", "_exps": "Q8_0", "down_exps": "Q8_0",
             "gate_inp_shexp": "F32", "ssm_out": "Q8_0", "attn_output": "Q8_0", "attn_gate": "Q8_0"})  # fmt: skip


def error_of(got, want):
    """Normalised squared error of each row of logits, float64 (T,)."""
    return ((got.astype(np.float64) - want) ** 2).mean(-1) / want.var(-1, dtype=np.float64)


@pytest.fixture(scope="module", params=HYBRID_MODELS)
def recorded(request, tmp_path_factory):
    tiny = write_hybrid(tmp_path_factory.mktemp("model") / "m.gguf", request.param)
    record = np.load(RECORDS / f"{request.param}.npz")
    assert weights_crc(tiny) == record["crc"], "other weights than were recorded; see tools/record_archs.py"
    return tiny, record


@pytest.fixture(params=["delta nets", "short convolutions", "Mamba-1", "Mamba-2", "Kimi delta attention"])
def small(request, tmp_path):
    if request.param != "delta nets":
        names = {"Mamba-1": "jamba", "Mamba-2": "granitehybrid", "short convolutions": "lfm2moe", "Kimi delta attention": "kimi-linear-small"}
        return write_arch(tmp_path / "m.gguf", names[request.param], quant="Q8_0")
    return write_hybrid(tmp_path / "m.gguf", **SMALL)


def test_quantized_logits_equal_stock(recorded):
    """But for an activation that rounds the other way now and then: stock's two ways of computing them, many tokens at once
    and one by one, are ten times as far from each other as we from the nearer."""
    tiny, record = recorded
    got = logits(load(tiny), prompt(), n_ubatch=512)
    error = np.minimum(error_of(got, record["logits"]), error_of(got, record["one_by_one"]))
    assert np.median(error) < 1e-9 and np.mean(error < 1e-6) > 0.9
    assert error.mean() < 0.1 * error_of(record["one_by_one"], record["logits"]).mean()
    assert (got.argmax(-1) == record["logits"].argmax(-1)).all()


def test_quantized_logits_are_the_same_bytes_everywhere(recorded):
    assert_same_bytes_everywhere(recorded[0], prompt())


# -- the state of a timeline --------------------------------------------------------------------


@pytest.fixture
def engine(small):
    with Engine(small.path, n_ctx=256, n_threads=2, n_ubatch=40) as engine:
        yield engine


@pytest.mark.parametrize("n", [0, 1, 39, 40, 41, 80, 99, 100])
def test_rewind(engine, n):
    tokens = prompt()[:120].tolist()
    expected = engine.logits(tokens)
    other = engine.logits(tokens[:n] + tokens[:20])[-1]
    session = engine.session()
    session.eval(tokens[:100])
    session.rewind(n)
    assert session.n_past == n
    assert np.array_equal(session.eval(tokens[:20]), other)
    session.rewind(n)
    assert np.array_equal(session.eval(tokens[n:]), expected[-1])
    assert session.tokens == tokens


def test_a_shorter_timeline_goes_on_from_a_copy(engine):
    """Of the state before the last longer chunk, as long as that belongs to the timeline; else from the beginning."""
    tokens, session = prompt()[:100].tolist(), engine.session()
    session.eval(tokens)
    n_ready = session._context.n_ready
    assert [n_ready(n) for n in (100, 99, 80, 79, 0)] == [100, 80, 80, 0, 0]
    session.rewind(90)
    session.eval(tokens[90:93])
    assert [n_ready(n) for n in (93, 92, 80, 79)] == [93, 80, 80, 0]
    session.rewind(60)
    session.eval(tokens[:1])
    assert [n_ready(n) for n in (61, 60, 40, 39)] == [61, 40, 40, 0]


def test_state_of_replaced_tokens_is_never_used(engine):
    """Random rewinds and continuations, each against a timeline that never was anything else."""
    rng, session, held = np.random.default_rng(5), engine.session(), []
    for _ in range(25):
        if held and rng.random() < 0.6:
            held = held[: rng.integers(0, len(held) + 1)]
            session.rewind(len(held))
        held = held + rng.integers(0, 64, rng.choice([1, 2, 15, 17, 45])).tolist()
        held = held[:200]
        row = session.eval(held[session.n_past :] or [held.pop()]) if session.n_past < len(held) else None
        if row is not None:
            assert np.array_equal(row, engine.logits(held)[-1])


def test_generations_reuse_what_they_can_and_no_more(engine):
    greedy = dict(temperature=0, max_tokens=8, ignore_eos=True)
    long, short = prompt()[:90].tolist(), prompt()[:30].tolist()
    cold = engine.complete(long, **greedy)
    assert cold.n_reused == 0
    again = engine.complete(long, **greedy)
    assert again.tokens == cold.tokens and again.n_reused == 40
    further = engine.complete(long + cold.tokens + [5], **greedy)
    with_other = engine.session().complete(long + cold.tokens + [5], **greedy)
    assert further.tokens == with_other.tokens and further.n_reused >= 40
    assert engine.complete(short, **greedy).n_reused == 0
    assert engine.complete(long, **greedy).tokens == cold.tokens


def test_prompts_that_take_turns_on_one_timeline(engine):
    prompts = [prompt()[:50].tolist(), prompt()[20:60].tolist(), prompt()[:70].tolist()]
    greedy = dict(temperature=0, ignore_eos=True)
    expected = [engine.session().complete(p, max_tokens=6, **greedy).tokens for p in prompts]
    session = engine.session()
    for n in (1, 2, 6, 3):
        assert [session.complete(p, max_tokens=n, **greedy).tokens for p in prompts] == [tokens[:n] for tokens in expected]


def test_save_and_load(small, engine, tmp_path):
    tokens = prompt()[:120].tolist()
    expected = engine.logits(tokens)
    session = engine.session()
    session.eval(tokens[:100])
    session.save(tmp_path / "a")
    session.rewind(70)  # the state is of 100 tokens: it is computed again for the file
    session.save(tmp_path / "b")
    session.rewind(0)
    session.save(tmp_path / "c")
    with Engine(small.path, n_ctx=128, n_threads=1) as other:
        loaded = other.session()
        for name, n in (("a", 100), ("b", 70), ("c", 0), ("a", 100)):
            loaded.load(tmp_path / name)
            assert loaded.tokens == tokens[:n]
            assert np.array_equal(loaded.eval(tokens[n:]), expected[-1])
        loaded.load(tmp_path / "a")
        loaded.rewind(60)
        assert np.array_equal(loaded.eval(tokens[60:]), expected[-1])
    with Engine(write_hybrid(tmp_path / "other.gguf", **SMALL | {"dim": 32}).path, n_ctx=128) as other:
        with pytest.raises(ConfigError, match="another model"):
            other.session().load(tmp_path / "a")


@pytest.mark.parametrize("n_new", [40, 3])
def test_saved_after_going_back_to_where_a_chunk_began(small, engine, tmp_path, n_new):
    """There the copy is of the timeline's tokens, and the state itself of more, or of none after a pass that broke off."""
    tokens = prompt()[:120].tolist()
    expected = engine.logits(tokens)
    session = engine.session()
    session.eval(tokens[:60])
    session.eval(tokens[60:100])
    session.rewind(60)
    session.save(tmp_path / "a")
    session.eval(tokens[60 : 60 + n_new])
    session.rewind(60)
    session.save(tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert np.array_equal(session.eval(tokens[60:]), expected[-1])
    with engine.session() as loaded:
        loaded.load(tmp_path / "a")
        assert np.array_equal(loaded.eval(tokens[60:]), expected[-1])


def test_state_of_another_size_is_refused(small):
    context = load(small).new_context(n_ctx=32, n_ubatch=32, team=Team(1))
    context.forward(prompt()[:5], 0, "none")
    state = context.kv_state(5)
    for wrong in (state[:-2], state[: 5 * context.model.sizes.kv_elements], np.append(state, state[:2])):
        with pytest.raises(ConfigError, match="KV state"):
            context.set_kv_state(wrong, 5)
    with pytest.raises(ConfigError, match="the timeline's state"):
        context.kv_state(4)
    with pytest.raises(ConfigError, match="recurrent state"):
        context.forward(prompt()[:1], 3, "none")
    context.set_kv_state(state, 5)
    assert np.array_equal(context.kv_state(5), state)


@pytest.mark.parametrize("n_past, n_new, ready", [(0, 60, 0), (60, 30, 60), (60, 3, 0), (100, 1, 60)])
def test_a_pass_that_broke_off(small, n_past, n_new, ready):
    """What it left behind is not the state of any number of tokens."""
    tokens = prompt()
    want = logits(load(small), tokens, n_ubatch=192)
    context = load(small).new_context(n_ctx=256, n_ubatch=64, team=Team(2))
    for i, n in ((0, 60), (60, 40)):
        if i < n_past:
            context.forward(tokens[i : i + n], i, "none")
    context.cancel()
    with pytest.raises(CancelledError):
        context.forward(tokens[n_past : n_past + n_new], n_past, "none")
    assert context.n_ready(n_past) == ready
    for i in range(ready, 192, 64):
        out = np.empty((len(tokens[i : i + 64]), 64), np.float32)
        context.forward(tokens[i : i + 64], i, "all", out)
        assert np.array_equal(out, want[i : i + 64])


def test_cancelled_calls_leave_the_timeline_usable(tmp_path):
    """Cancels from another thread, at any point of a pass and while the state is computed again."""
    tiny = write_hybrid(tmp_path / "m.gguf", **SMALL, n_layer=24)
    tokens = (prompt().tolist() * 3)[:500]
    with Engine(tiny.path, n_ctx=600, n_threads=2, n_ubatch=128) as engine:
        expected, session = engine.logits(tokens), engine.session()
        assert cancel_at_random(session, tokens, 300) > 3
        assert np.array_equal(session.eval(tokens[session.n_past :]), expected[-1])


def test_several_sessions_over_one_engine(engine):
    a, b = engine.session(), engine.session(n_ctx=100)
    tokens, others = prompt()[:80].tolist(), prompt()[80:160].tolist()
    expected = [engine.logits(t)[-1] for t in (tokens, others)]
    for i in range(0, 80, 16):
        rows = [s.eval(t[i : i + 16]) for s, t in ((a, tokens), (b, others))]
    assert np.array_equal(rows, expected)


@pytest.mark.parametrize("n_layer, interval", [(2, 4), (2, 1), (5, 2)])
def test_layers_of_one_kind_only(tmp_path, n_layer, interval):
    model = load(write_hybrid(tmp_path / "m.gguf", **SMALL, n_layer=n_layer, interval=interval))
    want = logits(model, prompt(), n_ubatch=192)
    assert np.isfinite(want).all()
    assert logits(model, prompt(), n_ubatch=7).tobytes() == want.tobytes()


def test_memory_is_counted(tmp_path):
    model = load(write_hybrid(tmp_path / "m.gguf", **SMALL))
    n_state = 3 * (3 * (2 * 2 + 4) * 16 + 4 * 16 * 16)
    assert model.sizes.n_recurrent == n_state
    assert recurrent_bytes(model.file) == 8 * n_state  # and a copy
    assert model.kv_bytes(64) == 64 * kv_bytes_per_token(model.file) + 8 * n_state
    assert kv_bytes_per_token(model.file) == 2 * 2 * 2 * 16
    assert describe(model.file, 64).kv_bytes == model.kv_bytes(64)
    assert model.new_context(n_ctx=64, n_ubatch=8, team=Team(1)).memory_bytes["kv"] == model.kv_bytes(64)


# -- what a file may say ------------------------------------------------------------------------

KEYS = ["ssm.conv_kernel", "ssm.inner_size", "ssm.state_size", "ssm.time_step_rank", "ssm.group_count"]
REFUSED = [
    *((key, value, key) for key in KEYS for value in (None, 0, -1, 1 << 31, 2.0, "x", [4, 4])),
    ("ssm.group_count", 3, "divisor"), ("ssm.group_count", 8, "divisor"), ("ssm.inner_size", 65, "inner_size.*expected 64"),
    ("ssm.state_size", 32, "inner_size.*expected 128"), ("ssm.conv_kernel", 3, "ssm_conv1d.*128 x 4.*128 x 3"),
    ("ssm.group_count", 4, "attn_qkv"), ("ssm.group_count", 1, "attn_qkv"), ("ssm.conv_kernel", 17, "conv_kernel"),
    ("full_attention_interval", 0, "full_attention_interval"), ("full_attention_interval", 2, "blk.1.attn_qkv|blk.1.attn_q"),
    ("attention.recurrent_layers", [True, True], "recurrent_layers.*4 flags"), ("attention.recurrent_layers", "x", "recurrent_layers"),
    ("attention.recurrent_layers", [0.5] * 4, "recurrent_layers"), ("attention.value_length", 32, "attn_v|value_length"),
    ("rope.dimension_sections", [1, 2], "dimension_sections"), ("rope.dimension_sections", [-1, 2, 2, 0], "dimension_sections"),
]  # fmt: skip


@pytest.mark.parametrize("key, value, words", REFUSED, ids=lambda v: str(v)[:40])
def test_bad_metadata_is_refused_with_the_key(tmp_path, key, value, words):
    with pytest.raises(GGUFError, match=words):
        load(write_hybrid(tmp_path / "m.gguf", **SMALL, metadata={key: value}))


@pytest.mark.parametrize("arch", ARCHS)
def test_a_missing_or_odd_tensor_is_named(tmp_path, arch):
    tiny, path = write_hybrid(tmp_path / "a.gguf", arch, **SMALL), tmp_path / "m.gguf"
    for name, (array, _) in tiny.tensors.items():
        if name.startswith(("blk.1.", "blk.3.")) and "ffn" not in name:
            for wrong in (None, np.zeros((3, 5)), np.zeros(7), np.zeros((2, 2, 2))):
                with pytest.raises(GGUFError, match=name.removesuffix(".weight")):
                    load(write_hybrid(path, arch, **SMALL, tensors={name: wrong}))


@pytest.mark.parametrize("layers", [[True, True, True, False], [1, 1, 1, 0, 0, 1]])
def test_layers_by_flags(tmp_path, layers):
    """The same as by the interval, whatever that says."""
    got = [
        logits(load(write_hybrid(tmp_path / "m.gguf", **SMALL, metadata=m)), prompt()).tobytes()
        for m in ({"attention.recurrent_layers": layers, "full_attention_interval": 3}, {}, {"full_attention_interval": None})
    ]
    assert got[0] == got[1] == got[2]


def test_any_value_of_their_own_keys_works_or_is_refused(tmp_path):
    keys = (*KEYS, "full_attention_interval", "attention.recurrent_layers", "rope.dimension_sections")
    write = functools.partial(write_hybrid, **SMALL)
    assert count_refused(tmp_path / "a.gguf", write, keys) > 40


def test_values_that_are_not_finite_do_not_crash(tmp_path):
    for name in ("blk.0.ssm_a", "blk.0.ssm_dt.bias", "blk.0.ssm_conv1d.weight", "blk.0.ssm_norm.weight"):
        for value in (np.nan, np.inf, -np.inf, 3e38):
            tiny = write_hybrid(tmp_path / "a.gguf", **SMALL)
            array = np.full_like(tiny.tensors[name][0], value)
            with Engine(write_hybrid(tmp_path / "m.gguf", **SMALL, tensors={name: array}).path, n_threads=1) as engine:
                try:
                    engine.logits([1, 2, 3])
                except MoeEngineError:
                    pass
