"""Threads, cancelling, Ctrl-C, closing, forking, freeing: what a process can do to an Engine."""

import copy
import gc
import pickle
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from moeengine import Engine
from moeengine.errors import CancelledError, ClosedError, MoeEngineError
from tests.engine.fakes import EOS, FakeModel, fake_engine, wait_until
from tests.interrupt import interrupted

ROOT = Path(__file__).parents[2]
GREEDY = {"temperature": 0, "max_tokens": 8}
LONG = [65] * 600


@pytest.fixture
def made(monkeypatch):
    return fake_engine(monkeypatch, n_ctx=32, n_ubatch=8)


@pytest.fixture
def slow(monkeypatch):
    """20 ms a token: LONG takes 12 s."""
    return fake_engine(monkeypatch, FakeModel(1000, delay_s=0.02))


def ran_to_the_end(model):
    """Did any pass compute all of LONG? 12 s are more than any machine stands still between a signal and its handler."""
    return any(len(context.held) == len(LONG) for context in model.contexts)


def after(seconds, action):
    timer = threading.Timer(seconds, action)
    timer.start()
    return timer


# -- streams and threads ----------------------------------------------------------------------


def test_a_stream_half_read_lets_other_calls_in_and_goes_on(made):
    engine, model = made
    model.say(3, [*b"hello wo", EOS])
    expected = engine.complete("ab", temperature=0, max_tokens=20).tokens
    stream = engine.generate("ab", stream=True, temperature=0, max_tokens=20)
    pieces = [next(stream), next(stream)]
    engine.complete("something else", **GREEDY)
    pieces.append(next(stream))
    engine.logits([5, 6, 7])
    other = engine.generate("ab", stream=True, **GREEDY)
    pieces += [next(stream), next(other), next(stream)]
    pieces = [p for p in pieces if p]
    list(stream)
    assert stream.result.tokens == expected
    assert stream.result.text == "hello wo"


def test_a_stream_can_be_left(made):
    engine, model = made
    stream = engine.generate("ab", stream=True, **GREEDY)
    next(stream)
    stream.close()
    stream.close()
    assert list(stream) == [] and stream.result.finish_reason == "cancelled"
    with engine.generate("ab", stream=True, **GREEDY) as stream:
        next(stream)
    assert list(stream) == []


def test_a_stream_left_while_another_thread_reads_it(slow):
    engine, model = slow
    stream = engine.generate(LONG, stream=True, temperature=0, max_tokens=-1)
    thread = threading.Thread(target=lambda: list(stream))
    thread.start()
    wait_until(lambda: model.n_at_once)
    stream.close()
    engine.cancel()
    thread.join(60)
    assert not thread.is_alive() and stream.result.finish_reason == "cancelled"


def test_four_threads_on_one_engine(made):
    engine, model = made
    prompts = [f"prompt {i}" for i in range(8)]
    expected = {p: engine.complete(p, **GREEDY).tokens for p in prompts}
    with ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            results = list(pool.map(lambda p: (p, engine.complete(p, **GREEDY)), prompts))
            assert all(expected[p] == r.tokens for p, r in results)


def test_four_threads_stream_without_starving_each_other(made):
    engine, model = made

    def read(prompt):
        stream = engine.generate(prompt, stream=True, **GREEDY)
        list(stream)
        return stream.result

    n_before = sum(model.contexts[0].computed)
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(read, [f"prompt {i}" for i in range(8)]))
    n_computed = sum(model.contexts[0].computed) - n_before
    assert all(len(r.tokens) == 8 for r in results)
    assert n_computed < 8 * (9 + 8) * 2  # a stream that is being read keeps its timeline


def test_two_sessions_from_two_threads(made):
    engine, model = made
    sessions = [engine.session(), engine.session()]
    rows = [engine.logits([i, i + 1, i + 2])[-1] for i in (10, 20)]

    def work(session, first):
        out = None
        for _ in range(20):
            session.rewind(0)
            out = session.eval([first, first + 1, first + 2])
        return out

    with ThreadPoolExecutor(2) as pool:
        got = list(pool.map(work, sessions, (10, 20)))
    assert all(np.array_equal(a, b) for a, b in zip(got, rows))


def test_a_call_from_a_callback_is_refused(made):
    engine, model = made
    errors = []

    def progress(n, total):
        for call in (lambda: engine.complete("x"), lambda: engine.logits([1])):
            try:
                call()
            except ClosedError as error:
                errors.append(str(error))

    engine.complete("ab", progress=progress, **GREEDY)
    assert len(errors) == 4 and all("busy" in e for e in errors)


# -- cancelling -------------------------------------------------------------------------------


def test_cancel_in_a_long_prompt(slow):
    engine, model = slow
    after(0.1, engine.cancel)
    answer = engine.complete(LONG, **GREEDY)
    assert not ran_to_the_end(model)
    assert (answer.finish_reason, answer.text, answer.tokens) == ("cancelled", "", [])
    assert engine.complete([65] * 3, temperature=0, max_tokens=2).n_generated == 2


def test_cancel_while_decoding_keeps_the_text(slow):
    engine, model = slow
    model.say(3, b"a" * 60)
    after(0.3, engine.cancel)
    answer = engine.complete("ab", temperature=0, max_tokens=-1)
    assert answer.finish_reason == "cancelled"
    assert 1 <= len(answer.text) < 30 and set(answer.text) == {"a"}


def test_cancel_emits_the_tail_held_back(slow):
    engine, model = slow
    model.say(3, b"ab" * 30)
    stream = engine.generate(
        "ab", stream=True, temperature=0, max_tokens=-1, stop="abababababababX"
    )
    after(0.2, engine.cancel)
    text = "".join(stream)
    assert stream.result.finish_reason == "cancelled" and text == "ab" * (len(text) // 2) + "a" * (
        len(text) % 2
    )
    assert len(text) == stream.result.n_generated


def test_cancel_of_eval_and_logits_raises(slow):
    engine, model = slow
    session = engine.session()
    for call in (lambda: session.eval(LONG), lambda: engine.logits(LONG)):
        after(0.1, engine.cancel)
        with pytest.raises(CancelledError):
            call()
    assert session.n_past == 0
    session.eval([1])


def test_cancel_of_one_session_leaves_the_others(slow):
    engine, model = slow
    session = engine.session()
    after(0.1, session.cancel)
    assert engine.complete([65] * 10, **GREEDY).finish_reason == "length"


def test_cancel_with_nothing_under_way_does_nothing(made):
    engine, model = made
    engine.cancel()
    model.contexts[0].cancel()  # one that came just after a pass had ended
    assert engine.complete("ab", **GREEDY).finish_reason == "length"


def test_cancel_reaches_a_call_that_waits_for_its_turn(slow):
    engine, model = slow
    results = []
    threads = [
        threading.Thread(target=lambda: results.append(engine.complete(LONG, **GREEDY)))
        for _ in range(3)
    ]
    for t in threads:
        t.start()
    time.sleep(0.1)
    engine.cancel()
    for t in threads:
        t.join(60)
    assert [r.finish_reason for r in results] == ["cancelled"] * 3


# -- Ctrl-C -----------------------------------------------------------------------------------


@pytest.mark.parametrize("delay", [0.02, 0.15, 0.3])
def test_ctrl_c_ends_a_prompt_and_the_engine_goes_on(slow, delay):
    engine, model = slow
    for call in (lambda: engine.complete(LONG), lambda: engine.session().eval(LONG)):
        interrupted(call, after=delay)
    assert not ran_to_the_end(model)
    assert not any(c.busy.locked() for c in model.contexts)
    assert engine.complete("ab", temperature=0, max_tokens=2).n_generated == 2


def test_ctrl_c_keeps_the_chunks_that_were_complete(monkeypatch):
    engine, model = fake_engine(monkeypatch, FakeModel(1000, delay_s=0.005), n_ubatch=8)
    session = engine.session()
    tokens = list(range(250)) * 3
    interrupted(lambda: session.eval(tokens), after=0.5)
    assert 0 < session.n_past < 750 and session.n_past % 8 == 0
    model.delay_s = 0
    assert np.array_equal(session.eval(tokens[session.n_past :]), engine.logits(tokens)[-1])


def test_ctrl_c_at_many_moments(monkeypatch):
    expected, n_busy = None, 0
    for i in range(60):
        engine, model = fake_engine(monkeypatch, FakeModel(delay_s=0.0005), n_ctx=64, n_ubatch=8)
        expected = expected or engine.complete("abcdef", **GREEDY).tokens

        def answer_for_ever():
            while True:
                engine.complete([i, 2, 3, 4, 5, 6], temperature=0, max_tokens=6)
                list(engine.generate([i, 1], stream=True, temperature=0, max_tokens=3))

        interrupted(answer_for_ever, after=0.002 + 0.0004 * i)
        for context in model.contexts:
            context.thrown_out()
        try:
            assert engine.complete("abcdef", **GREEDY).tokens == expected
        except ClosedError:
            # Between two lines of Python an interrupt can leave the turn with its call, until the
            # traceback that holds the call is gone.
            n_busy += 1
    assert n_busy <= 5


# -- closing ----------------------------------------------------------------------------------


def test_close_twice_and_use_after_close(made):
    engine, model = made
    session = engine.session()
    stream = engine.generate("ab", stream=True, **GREEDY)
    next(stream)
    engine.close()
    engine.close()
    session.close()
    for call in (
        lambda: engine.complete("a"), lambda: engine.generate("a", stream=True), engine.session,
        lambda: engine.logits([1]), lambda: engine.tokenize("a"), engine.stats,
        lambda: next(stream),
        lambda: session.eval([1]), lambda: session.rewind(0), lambda: session.save("x"),
        lambda: session.complete("a"), lambda: engine.chat([{"role": "user"}]),
    ):  # fmt: skip
        with pytest.raises(ClosedError, match="closed"):
            call()
    for closed in (engine, session):
        with pytest.raises(ClosedError, match="closed"), closed:
            pass
        assert "closed" in repr(closed)
    engine.cancel()
    assert stream.result.finish_reason == "cancelled"


def test_what_holds_a_model_is_neither_pickled_nor_copied(made):
    engine, model = made
    with engine.session() as session, engine.generate("ab", stream=True, **GREEDY) as stream:
        session.eval([1, 2])
        next(stream)
        for thing, words in ((engine, "Engine"), (session, "Session"), (stream, "Stream")):
            for use in (pickle.dumps, copy.copy, copy.deepcopy):
                with pytest.raises(TypeError, match=f"{words} cannot be pickled or copied"):
                    use(thing)
        assert repr(session) == "<Session with 2 of 32 tokens>" and repr(stream) == "<Stream of 1 tokens, not ended>"
        assert pickle.loads(pickle.dumps(stream.result)) == stream.result


def test_close_while_another_thread_generates(slow):
    engine, model = slow
    outcome = []

    def run(call):
        try:
            outcome.append(call())
        except MoeEngineError as error:
            outcome.append(error)

    stream = engine.generate("ab", stream=True, temperature=0, max_tokens=-1)
    threads = [
        threading.Thread(target=run, args=(c,))
        for c in (lambda: engine.complete(LONG), lambda: list(stream))
    ]
    for t in threads:
        t.start()
    wait_until(lambda: model.n_at_once)
    model_file = engine._runtime.model_file
    engine.close()
    assert not ran_to_the_end(model) and model.n_at_once == 0
    for t in threads:
        t.join(60)
    assert [type(o) for o in outcome] == [ClosedError, ClosedError]
    assert not model_file.is_open and engine._runtime.model is None


def test_close_from_inside_a_call_takes_effect_at_its_end(made):
    engine, model = made
    runtime = engine._runtime
    with pytest.raises(ClosedError):
        engine.complete("abcdefghijkl", progress=lambda n, total: engine.close(), **GREEDY)
    assert runtime.model is None and not runtime.model_file


def test_everything_is_freed_without_the_garbage_collector(monkeypatch):
    engine, model = fake_engine(monkeypatch)
    gc.disable()
    try:
        session = engine.session()
        session.eval([1, 2])
        engine.complete("ab", **GREEDY)
        stream = engine.generate("ab", stream=True, **GREEDY)
        next(stream)
        try:
            engine.complete([1] * 99)
        except MoeEngineError:
            pass
        refs = [weakref.ref(o) for o in (engine, session, stream, engine._runtime, *model.contexts)]
        model.contexts.clear()
        del engine, session, stream
        assert [r() for r in refs] == [None] * len(refs)
    finally:
        gc.enable()


def test_an_interrupted_call_is_freed_too(monkeypatch):
    engine, model = fake_engine(monkeypatch, FakeModel(1000, delay_s=0.02))
    gc.disable()
    try:
        interrupted(lambda: engine.complete(LONG), after=0.1)
        ref = weakref.ref(engine._runtime)
        del engine
        wait_until(lambda: ref() is None)
    finally:
        gc.enable()


# -- processes --------------------------------------------------------------------------------


def run_script(body):
    """Run a script that begins with a fake engine; returns the CompletedProcess."""
    head = (
        "import os, sys, threading, time, pytest\n"
        "from tests.engine.fakes import FakeModel, fake_engine\n"
        "engine, model = fake_engine(pytest.MonkeyPatch(), FakeModel(1000, delay_s=0.01))\n"
    )
    return subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", head + body],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize(
    "body",
    [
        "engine.complete('ab', max_tokens=2)",
        "stream = engine.generate('ab', stream=True); next(stream)",
        "stream = engine.generate('ab', stream=True); next(stream); engine.close()",
        "session = engine.session(); session.eval([1])",
        "threading.Thread(target=lambda: engine.complete('ab' * 20), daemon=True).start()",
    ],
)
def test_the_interpreter_ends_silently(body):
    done = run_script(body)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("busy", [False, True])
def test_a_forked_child_goes_on(busy):
    body = f"""
if {busy}:
    threading.Thread(target=lambda: engine.complete('ab' * 20), daemon=True).start()
    time.sleep(.05)
else:
    engine.complete('ab', max_tokens=2)
pid = os.fork()
if pid == 0:
    try:
        print(engine.complete('abc', max_tokens=3, temperature=0).n_generated, flush=True)
        engine.close()
    finally:
        os._exit(0)
end = time.monotonic() + 20
while os.waitpid(pid, os.WNOHANG) == (0, 0):
    if time.monotonic() > end:
        os.kill(pid, 9)
        sys.exit('the child hangs')
    time.sleep(.01)
print(engine.complete('abc', max_tokens=3, temperature=0).n_generated)
"""
    done = run_script(body)
    assert (done.returncode, done.stdout, done.stderr) == (0, "3\n3\n", "")


def test_sigint_in_a_script_ends_it_with_keyboard_interrupt():
    body = """
import signal
threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
try:
    engine.complete([65] * 1000)
except KeyboardInterrupt:
    print(len(model.contexts[0].held) < 1000)
"""
    done = run_script(body)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


def test_a_failed_load_shows_only_its_cause(tmp_path):
    (tmp_path / "bad.gguf").write_bytes(b"GGUF" + bytes(3))
    code = (
        "import gc, sys\nfrom moeengine import Engine, MoeEngineError\n"
        f"for name in ('missing.gguf', 'bad.gguf'):\n"
        f"    try:\n        Engine({str(tmp_path)!r} + '/' + name)\n"
        "    except (MoeEngineError, OSError) as error:\n        print(type(error).__name__)\n"
        "gc.collect()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stderr == "" and len(done.stdout.split()) == 2


def test_nothing_is_made_that_needs_freeing_when_a_setting_is_wrong():
    with pytest.raises(MoeEngineError, match="n_ctx"):
        Engine("missing.gguf", n_ctx=0)
