"""Engine and Session on a fake model: prompts, limits, reuse, results."""

import logging
import math

import numpy as np
import pytest

from moeengine.errors import (
    ClosedError,
    ConfigError,
    ContextOverflowError,
    NumericError,
    UnsupportedError,
)  # fmt: skip
from tests.engine.fakes import BOS, CHANNEL, EOS, IM_END, MESSAGE, N_VOCAB, THINK, FakeModel, fake_engine


@pytest.fixture
def made(monkeypatch):
    return fake_engine(monkeypatch, n_ctx=32, n_ubatch=8)


GREEDY = {"temperature": 0, "max_tokens": 8}


def test_text_ends_at_the_end_token(made):
    engine, model = made
    model.say(3, [*b"hello", EOS])
    answer = engine.complete("ab", **GREEDY)
    assert (answer.text, answer.finish_reason, answer.stop) == ("hello", "stop", None)
    assert answer.tokens == list(b"hello") and answer.n_generated == 5 and answer.n_prompt == 3
    assert engine.generate("ab", **GREEDY) == "hello"
    assert answer.prefill_s > 0 and answer.decode_s > 0


def test_ignore_eos_goes_on(made):
    engine, model = made
    model.say(3, [*b"hi", EOS, *b"x"])
    assert engine.generate("ab", temperature=0, max_tokens=4, ignore_eos=True) == "hix"


@pytest.mark.parametrize("n_prompt, n_new", [(20, 12), (31, 1), (32, 0)])
@pytest.mark.parametrize("max_tokens", [-1, 100, None])
def test_a_full_context_is_length(made, n_prompt, n_new, max_tokens):
    engine, model = made
    answer = engine.complete([65] * n_prompt, temperature=0, max_tokens=max_tokens)
    assert (answer.n_generated, answer.finish_reason) == (n_new, "length")


def test_a_prompt_that_cannot_fit_names_both_numbers(made):
    engine, model = made
    with pytest.raises(ContextOverflowError, match="33 tokens.* 32"):
        engine.complete([65] * 33)
    with pytest.raises(ContextOverflowError):
        engine.generate("a" * 32, stream=True)  # at once, not at the first piece
    with pytest.raises(ContextOverflowError, match="33.*32"):
        engine.logits([65] * 33)
    assert engine.complete([65] * 3, **GREEDY).n_generated == 8


def test_an_empty_prompt_is_bos(made):
    engine, model = made
    assert engine.complete("", **GREEDY).n_prompt == 1
    assert engine.complete([], **GREEDY).n_prompt == 1
    assert model.contexts[0].held[0] == BOS
    engine.tokenizer.bos_id = None
    engine.tokenizer.encode = lambda *a, **k: []
    with pytest.raises(ConfigError, match="no token.*BOS"):
        engine.complete("")


def test_max_tokens_zero_only_processes_the_prompt(made):
    engine, model = made
    answer = engine.complete("abc", max_tokens=0)
    assert (answer.text, answer.n_generated, answer.finish_reason) == ("", 0, "length")
    assert (
        engine.complete("abc", **GREEDY).n_reused == 3
    )  # all but the last, which gives the logits


@pytest.mark.parametrize(
    "prompt, words",
    [
        ([N_VOCAB], f"{N_VOCAB}.*0 to {N_VOCAB - 1}"),
        ([-1], "-1"),
        ([1.5], "token ids"),
        (["a"], "token ids"),
        ([True], "token ids"),
        (3, "prompt: found 3, expected a text, a list of token ids or a list of messages"),
        (b"ab" * 0 or None, "token ids"),
    ],
)
def test_prompts_that_are_none(made, prompt, words):
    with pytest.raises(ConfigError, match=words):
        made[0].complete(prompt)


def test_numpy_ids_are_a_prompt(made):
    assert made[0].complete(np.array([1, 2, 3], np.int64), **GREEDY).n_prompt == 3


# -- reuse ------------------------------------------------------------------------------------


def test_only_the_new_part_is_computed(made, caplog):
    engine, model = made
    context = model.contexts[0]
    first = engine.complete("abcdef", **GREEDY)
    context.computed.clear()
    with caplog.at_level(logging.INFO, "moeengine"):
        second = engine.complete([BOS, *b"abcdef", *first.tokens, *b"gh"], **GREEDY)
    assert second.n_reused == 7 + 7  # the last token drawn was never computed
    assert context.computed[0] == 3
    assert "14 reused" in caplog.text and "17 tokens" in caplog.text


def test_a_reused_prompt_gives_the_same_answer(made):
    """Cold, reused, after another request; with penalties over a window that holds the prompt."""
    engine, model = made
    settings = dict(temperature=0.9, seed=3, repeat_penalty=1.5, repeat_last_n=-1, max_tokens=8)
    cold = engine.complete("abcdef", **settings)
    again = engine.complete("abcdef", **settings)
    engine.complete("zz", **settings)
    later = engine.complete("abcdef", **settings)
    assert cold.n_reused == 0 and again.n_reused == 6 and later.n_reused == 1
    assert cold.tokens == again.tokens == later.tokens


def test_a_shorter_prompt_rewinds(made):
    engine, model = made
    engine.complete("abcdef", **GREEDY)
    answer = engine.complete("abc", **GREEDY)
    assert answer.n_reused == 3
    with_fresh, _ = engine.complete("abc", **GREEDY), None
    assert with_fresh.tokens == answer.tokens


def test_chunks_are_n_ubatch(made):
    engine, model = made
    seen = []
    engine.complete([65] * 20, max_tokens=0, progress=lambda n, total: seen.append((n, total)))
    assert model.contexts[0].computed == [8, 8, 4]
    assert seen == [(0, 20), (8, 20), (16, 20), (20, 20)]


def test_progress_is_told_within_a_chunk_too(monkeypatch):
    engine, model = fake_engine(monkeypatch, FakeModel(delay_s=0.01))
    seen = []
    engine.complete([65] * 50, max_tokens=0, progress=lambda n, total: seen.append((n, total)))
    assert len(seen) >= 4 and seen == sorted(seen)
    assert seen[0] == (0, 50) and seen[-1] == (50, 50)


def test_an_error_in_the_progress_callback_ends_the_call(monkeypatch):
    engine, model = fake_engine(monkeypatch, FakeModel(1000, delay_s=0.01))
    with pytest.raises(ZeroDivisionError):
        engine.complete([65] * 900, progress=lambda n, total: 1 / 0 if n else 1)
    assert not model.contexts[0].busy.locked()
    assert engine.complete("a", **GREEDY).n_generated == 8


def test_two_bos_are_warned_about(made, caplog):
    engine, model = made
    engine.complete("<s>a", max_tokens=0)
    assert model.contexts[0].held == [BOS, BOS, 97] and "two BOS" in caplog.text


# -- results ----------------------------------------------------------------------------------


def test_the_seed_is_told_and_repeats_the_answer(made):
    engine, _ = made
    answer = engine.complete("ab", temperature=1.7, max_tokens=8)
    again = engine.complete("ab", temperature=1.7, max_tokens=8, seed=answer.seed)
    assert again.tokens == answer.tokens
    assert len({engine.complete("ab", max_tokens=0).seed for _ in range(5)}) == 5
    engine.complete("ab", max_tokens=0, seed=11)
    assert engine._runtime.counters.last_seed == 11


def test_logprobs_change_nothing(made):
    engine, _ = made
    without = engine.complete("ab", seed=1, max_tokens=8)
    answer = engine.complete("ab", seed=1, max_tokens=8, logprobs=10)
    assert answer.tokens == without.tokens and without.logprobs == []
    assert [p.token for p in answer.logprobs] == answer.tokens
    logits = engine.logits([BOS, *b"ab"])[-1].astype(np.float64)
    expected = logits - np.log(np.exp(logits).sum())
    assert answer.logprobs[0].logprob == pytest.approx(expected[answer.tokens[0]], abs=1e-9)
    assert len(answer.logprobs[0].top) == 10


def test_stop_strings_and_control_tokens(made):
    engine, model = made
    model.say(3, [*b"a", THINK, *b"b", IM_END, *b"c"])
    assert engine.generate("ab", temperature=0, max_tokens=5) == "abc"
    answer = engine.complete("ab", temperature=0, max_tokens=5, stop="<|im_end|>")
    assert (answer.text, answer.stop, answer.finish_reason) == ("ab", "<|im_end|>", "stop")
    model.say(3, [*b"own fox", EOS])
    assert engine.generate("ab", temperature=0, max_tokens=9, stop=["own fo", "fox"]) == ""
    model.say(3, [*b"own fo", EOS])
    assert engine.generate("ab", temperature=0, max_tokens=9, stop=["own fox"]) == "own fo"
    assert engine.generate("ab", temperature=0, max_tokens=3, stop=["own fox"]) == "own"


def test_the_end_token_as_a_stop_string(made):
    engine, model = made
    model.say(3, [*b"hi", EOS])
    answer = engine.complete("ab", stop=["</s>"], **GREEDY)
    assert (answer.text, answer.finish_reason, answer.stop) == ("hi", "stop", "</s>")


def test_text_held_back_for_a_stop_string_is_not_lost_at_the_end_token(made):
    engine, model = made
    model.say(3, [*b"a", THINK, *b"\nUse", EOS])
    assert engine.generate("ab", temperature=0, max_tokens=9, stop="<think>\nUser:") == "a\nUse"


def test_streamed_pieces_are_the_text(made):
    engine, model = made
    model.say(3, [*"häß😀 fo".encode(), EOS])
    settings = dict(temperature=0, max_tokens=20, stop="fox")
    stream = engine.generate("ab", stream=True, **settings)
    pieces = list(stream)
    assert "".join(pieces) == engine.generate("ab", **settings) == "häß😀 fo"
    assert "😀" in pieces and all(pieces)
    assert stream.result.text == "häß😀 fo" and stream.result.finish_reason == "stop"


def test_channels_are_shown_as_thoughts_and_text(made):
    engine, model = made
    model.say(3, [CHANNEL, *b"analysis", MESSAGE, *b"hm", CHANNEL, *b"final", MESSAGE, *b"Yes", EOS])
    settings = dict(temperature=0, max_tokens=40)
    assert "".join(engine.generate("ab", stream=True, **settings)) == "<think>\nhm\n</think>\n\nYes"
    for stop, text in (("final", "<think>\nhm"), ("</think>", "<think>\nhm\n"), ("Yes", "<think>\nhm\n</think>\n\n")):
        answer = engine.complete("ab", stop=stop, **settings)
        assert (answer.text, answer.finish_reason, answer.stop) == (text, "stop", stop)
    answer = engine.complete("ab", temperature=0, max_tokens=4)
    assert (answer.text, answer.finish_reason) == ("", "length")


def test_special_text_in_a_prompt(made):
    engine, model = made
    engine.complete("<|im_end|>", max_tokens=0)
    assert model.contexts[0].held == [BOS, IM_END]
    engine.complete("<|im_end|>", max_tokens=0, parse_special=False, add_special=False)
    assert model.contexts[0].held == list(b"<|im_end|>")
    assert engine.tokenize("<s>") == [BOS, *b"<s>"]
    assert engine.tokenize("<s>", add_special=False, parse_special=True) == [BOS]
    assert engine.detokenize([*b"ab", IM_END]) == "ab"


def test_nan_logits_are_a_typed_error_and_the_engine_goes_on(made):
    engine, model = made
    good, model.logits = model.logits, lambda held: np.full(N_VOCAB, math.nan, np.float32)
    with pytest.raises(NumericError, match="NaN"):
        engine.complete("ab")
    model.logits = good
    assert engine.complete("ab", **GREEDY).n_generated == 8


@pytest.mark.parametrize("call", ["complete", "generate", "stream"])
def test_a_callback_that_cannot_be_called_is_refused_at_once(made, call):
    engine, model = made
    settings = {"stream": True} if call == "stream" else {}
    with pytest.raises(ConfigError, match="progress: found 5, expected a function"):
        getattr(engine, "complete" if call == "complete" else "generate")("ab", progress=5, **settings)
    with pytest.raises(ConfigError, match="callback: found 'x', expected a function"):
        engine.on_routing("x")
    assert not any(context.computed for context in model.contexts)


def test_unknown_settings(made):
    with pytest.raises(ConfigError, match="did you mean temperature"):
        made[0].complete("ab", temprature=1)
    with pytest.raises(ConfigError, match="did you mean n_threads"):
        type(made[0])("fake.gguf", n_thread=1)


def test_without_a_tokenizer_ids_still_work(monkeypatch, caplog):
    engine, model = fake_engine(monkeypatch)

    def missing(*args, **kwargs):
        raise UnsupportedError("tokenizer: found 'future-model', expected ...")

    engine.tokenizer.stream = engine.tokenizer.encode = missing
    answer = engine.complete([1, 2], **GREEDY)
    assert answer.text == "" and len(answer.tokens) == 8 and "future-model" in caplog.text
    for call in (
        lambda: engine.complete("ab"),
        lambda: engine.complete([1], stop="x"),
        lambda: engine.generate([1]),
        lambda: engine.tokenize("a"),
    ):
        with pytest.raises(UnsupportedError, match="future-model"):
            call()


def test_chat_renders_and_answers(made, monkeypatch):
    engine, model = made
    seen = []

    class Template:
        def encode(self, messages, **variables):
            seen.append(variables)
            return [BOS, *messages[-1]["content"].encode(), IM_END]

    monkeypatch.setattr(type(engine._runtime), "chat_template", lambda self, source: Template())
    model.say(4, [*b"yes", EOS])
    messages = [{"role": "user", "content": "ok"}]
    assert engine.chat(messages, **GREEDY) == "yes"
    assert "".join(engine.chat(messages, stream=True, **GREEDY)) == "yes"
    assert engine.complete(messages, template_variables={"a": 1}, **GREEDY).n_prompt == 4
    assert seen == [{}, {}, {"a": 1}]
    for wrong in ("ok", [], [1], None):
        with pytest.raises(ConfigError, match="messages"):
            engine.chat(wrong)
    with pytest.raises(ConfigError, match="template_variables"):
        engine.chat(messages, template_variables={"messages": 1})


# -- logits and sessions ----------------------------------------------------------------------


def test_logits_of_every_position_whatever_the_chunks(made):
    engine, model = made
    tokens = list(range(20))
    whole = engine.logits(tokens)
    assert whole.shape == (20, N_VOCAB) and whole.dtype == np.float32
    for ubatch in (1, 3, 7, 8, 1000):
        assert np.array_equal(engine.logits(tokens, ubatch=ubatch), whole)
    engine.complete("ab", **GREEDY)
    assert np.array_equal(engine.logits(tokens), whole)
    assert engine.logits([]).shape == (0, N_VOCAB)
    for ubatch in (0, -1, 1.5, True):
        with pytest.raises(ConfigError, match="ubatch"):
            engine.logits(tokens, ubatch=ubatch)


def test_a_session_is_a_timeline(made):
    engine, model = made
    expected = engine.logits([1, 2, 3, 4])
    with engine.session() as session:
        assert np.array_equal(session.eval([1, 2, 3]), expected[2])
        kept = session.eval([4])
        assert session.n_past == 4 and session.tokens == [1, 2, 3, 4]
        session.rewind(1)
        assert session.n_past == 1
        session.eval([9])
        session.rewind(1)
        assert np.array_equal(session.eval([2, 3, 4]), kept)
        assert np.array_equal(kept, expected[3])  # not a view of a buffer used again
        with pytest.raises(ContextOverflowError, match="33.*32"):
            session.eval([1] * 29)
        for wrong in ([], [N_VOCAB], ["a"], b"\1\2"):
            with pytest.raises(ConfigError, match="tokens"):
                session.eval(wrong)
        for n in (5, -1, 1.0, None):
            with pytest.raises(ConfigError, match="0 to 4"):
                session.rewind(n)
        assert session.n_past == 4
        session.rewind(0)
        assert session.n_past == 0
    with pytest.raises(ClosedError):
        session.eval([1])


def test_sessions_do_not_touch_each_other(made):
    engine, model = made
    a, b = engine.session(), engine.session(n_ctx=16)
    assert (a.n_ctx, b.n_ctx) == (32, 16)
    first = a.eval([1, 2])
    b.eval([7, 8, 9])
    engine.complete("hello", **GREEDY)
    a.rewind(1)
    assert np.array_equal(a.eval([2]), first)
    assert b.n_past == 3 and b.tokens == [7, 8, 9]


def test_a_session_generates_too(made):
    engine, model = made
    session = engine.session()
    answer = session.complete("ab", **GREEDY)
    assert answer.tokens == engine.complete("ab", **GREEDY).tokens
    assert session.n_past == 3 + 7


def test_routing_is_told_after_every_pass(made):
    engine, model = made
    seen = []
    engine.on_routing(lambda n_past, tokens, experts: seen.append((n_past, tokens, experts.shape)))
    answer = engine.complete([65] * 10, temperature=0, max_tokens=2)
    engine.on_routing(None)
    engine.complete([66] * 10, **GREEDY)
    assert seen == [
        (0, [65] * 8, (2, 8, 2)), (8, [65] * 2, (2, 2, 2)), (10, answer.tokens[:1], (2, 1, 2)),
    ]  # fmt: skip


def test_an_error_in_the_routing_callback_ends_the_call(made):
    engine, model = made
    engine.on_routing(lambda *a: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        engine.complete("abc")
    engine.on_routing(lambda *a: engine.complete("x"))
    with pytest.raises(ClosedError, match="busy"):
        engine.complete("xyz")
    engine.on_routing(None)
    assert engine.complete("xyz", **GREEDY).n_reused == 3  # the pass itself was whole


def test_n_ctx_defaults(monkeypatch):
    engine, model = fake_engine(monkeypatch)
    assert engine.n_ctx == 64 and model.contexts[0].n_ubatch == 64
    engine, model = fake_engine(monkeypatch, FakeModel(n_ctx_train=100_000))
    assert engine.n_ctx == 4096 and model.contexts[0].n_ubatch == 4096


def test_a_longer_context_than_trained_is_warned_about(monkeypatch, caplog, capfd):
    fake_engine(monkeypatch, n_ctx=65)
    assert capfd.readouterr() == ("", "")
    assert "65" in caplog.text and "64" in caplog.text
