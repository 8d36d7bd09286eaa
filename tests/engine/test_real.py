"""Engine and Session on tiny real models: the same bytes however the work is cut; a clean life."""

import gc
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from moeengine import Engine
from moeengine.errors import ClosedError, ConfigError, UnsupportedError
from tests.interrupt import interrupted
from tests.loader.conditions import without_sanitizer
from tests.tiny import write_tiny

ROOT = Path(__file__).parents[2]
GREEDY = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}
TOKENS = [5, 17, 3, 99, 42, 7, 7, 120, 64, 1, 30, 2, 88, 19, 55, 23, 71]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_tiny(tmp_path_factory.mktemp("model") / "tiny.gguf").path


@pytest.fixture
def engine(path):
    with Engine(path, n_threads=2) as engine:
        yield engine


def test_logits_are_the_same_bytes_however_they_are_computed(path, engine):
    whole = engine.logits(TOKENS)
    assert whole.dtype == np.float32 and whole.shape == (len(TOKENS), engine.hparams.n_vocab)
    assert np.isfinite(whole).all()
    for ubatch in (1, 3, 7):
        assert np.array_equal(engine.logits(TOKENS, ubatch=ubatch), whole)
    with Engine(path, n_threads=1, n_ubatch=5) as other:
        assert np.array_equal(other.logits(TOKENS), whole)
    session = engine.session(n_ctx=32)
    assert np.array_equal(session.eval(TOKENS), whole[-1])
    session.rewind(6)
    rows = [session.eval([t]) for t in TOKENS[6:]]
    assert np.array_equal(np.array(rows), whole[6:])


def test_the_same_text_cold_reused_and_later(engine):
    prompt = "the inner alien in the inn"
    cold = engine.complete(prompt, **GREEDY)
    reused = engine.complete(prompt, **GREEDY)
    engine.complete("something else", **GREEDY)
    later = engine.complete(prompt, **GREEDY)
    assert reused.n_reused == cold.n_prompt - 1 and cold.n_reused == 0
    assert cold.tokens == reused.tokens == later.tokens
    assert "".join(engine.generate(prompt, stream=True, **GREEDY)) == cold.text


def test_engines_of_one_file_share_no_setting(path, engine):
    before = engine.logits(TOKENS)
    with Engine(path, n_threads=1, n_expert_used=1, n_ctx=20) as other:
        assert not np.array_equal(other.logits(TOKENS), before)
        assert np.array_equal(engine.logits(TOKENS), before)
        assert (other.stats()["n_expert_used"], engine.stats()["n_expert_used"]) == (1, 2)
    assert np.array_equal(engine.logits(TOKENS), before)


def test_two_sessions_and_two_engines_from_threads(path, engine):
    expected = engine.logits(TOKENS)

    def work(session):
        for _ in range(5):
            session.rewind(0)
            session.eval(TOKENS[:9])
            row = session.eval(TOKENS[9:])
        return row

    with Engine(path, n_threads=2) as other, ThreadPoolExecutor(3) as pool:
        sessions = [engine.session(), engine.session(), other.session()]
        for row in pool.map(work, sessions):
            assert np.array_equal(row, expected[-1])


def test_a_session_saved_and_loaded(path, engine, tmp_path):
    expected = engine.logits(TOKENS)
    first = engine.session()
    first.eval(TOKENS[:10])
    first.save(tmp_path / "a.session")
    with Engine(path, n_ctx=64, n_threads=1) as other:
        second = other.session()
        second.load(tmp_path / "a.session")
        assert second.tokens == TOKENS[:10]
        assert np.array_equal(second.eval(TOKENS[10:]), expected[-1])
    for changes in ({"seed": 1}, {"metadata": {"qwen3moe.rope.freq_base": 20000.0}}):  # B099: the second in the header alone
        strange = write_tiny(tmp_path / "b.gguf", **changes).path
        with Engine(strange, n_ctx=64) as other, pytest.raises(ConfigError, match="another model"):
            other.session().load(tmp_path / "a.session")


def test_chat_in_the_template_of_the_file(engine):
    user = {"role": "user", "content": "the inn <|im_end|> again"}
    answer = engine.complete([user], **GREEDY)
    session = engine.session()
    session.complete([user], temperature=0, max_tokens=0)
    start, end = (engine.tokenizer.id_of(t) for t in ("<|im_start|>", "<|im_end|>"))
    assert session.tokens.count(start) == 2 and session.tokens.count(end) == 1
    text = engine.tokenizer.decode(session.tokens, special=True)
    assert text == ("<|im_start|>user\nthe inn <|im_end|> again<|im_end|>\n<|im_start|>assistant\n")
    told = [user, {"role": "assistant", "content": answer.text}, user]
    assert engine.complete(told, **GREEDY).n_reused >= answer.n_prompt - 1
    assert engine.chat([user], **GREEDY) == answer.text
    shout = "{% for m in messages %}{{ m['content'] | upper }}{{ end }}{% endfor %}"
    session.complete(
        [user], chat_template=shout, template_variables={"end": "!"}, max_tokens=0, temperature=0
    )
    assert engine.tokenizer.decode(session.tokens) == "THE INN <|IM_END|> AGAIN!"
    for wrong in ([{"content": "x"}], [{"role": 3}], [user, "x"]):
        with pytest.raises(ConfigError, match="message"):
            engine.chat(wrong)
    with pytest.raises(ConfigError, match="template"):
        engine.chat([user], chat_template="{% if %}")


def test_a_model_without_a_template(tmp_path):
    plain = write_tiny(tmp_path / "a.gguf", metadata={"tokenizer.chat_template": None}).path
    with Engine(plain) as engine, pytest.raises(ConfigError, match="no chat template"):
        engine.chat([{"role": "user", "content": "x"}])


def test_a_vocabulary_that_cannot_be_used_leaves_ids(tmp_path):
    strange = write_tiny(tmp_path / "a.gguf", metadata={"tokenizer.ggml.pre": "future-model"}).path
    with Engine(strange) as engine:
        with pytest.raises(UnsupportedError, match="future-model"):
            engine.complete("the inn")
        answer = engine.complete(TOKENS, **GREEDY)
        assert len(answer.tokens) == 12 and answer.text  # decoding needs no pre-tokenizer
    bare = write_tiny(tmp_path / "b.gguf", tokenizer=False).path
    with Engine(bare) as engine:
        assert len(engine.complete(TOKENS, **GREEDY).tokens) == 12
        with pytest.raises(UnsupportedError):
            engine.generate(TOKENS)
    with Engine(strange, force_pre="gpt-2") as engine:
        assert engine.generate("the inn", **GREEDY)


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_another_number_of_experts_is_lossy_and_told(path, engine, n):
    with Engine(path, n_threads=2, n_expert_used=n) as other:
        logits = other.logits(TOKENS)
        assert np.isfinite(logits).all()
        assert np.array_equal(logits, engine.logits(TOKENS)) == (n == 2)
        stats = other.stats()
        assert stats["n_expert_used"] == n and stats["is_lossy"]
    assert not engine.stats()["is_lossy"]


def test_a_number_of_experts_there_are_not(path):
    with pytest.raises(ConfigError, match="n_expert_used.*9"):
        Engine(path, n_expert_used=9)


def test_routing_is_told(engine):
    seen = []
    engine.on_routing(lambda n_past, tokens, experts: seen.append((n_past, len(tokens), experts)))
    engine.complete(TOKENS, temperature=0, max_tokens=3, ignore_eos=True)
    engine.on_routing(None)
    assert [(n, t) for n, t, _ in seen] == [(0, 17), (17, 1), (18, 1)]
    assert engine.moe_layers == [0, 1]
    for _, n_tokens, experts in seen:
        assert experts.shape == (2, n_tokens, 2) and experts.dtype == np.int32
        assert experts.min() >= 0 and experts.max() < 8
        assert (experts[..., 0] != experts[..., 1]).all()
    assert len({e.tobytes() for _, _, e in seen}) == 3  # not one buffer used again


def test_stats_tell_what_was_done(engine):
    engine.complete(TOKENS, **GREEDY)
    stats = engine.stats()
    assert stats["n_threads"] == 2 and stats["arch"] == "qwen3moe" and stats["isa"]
    assert stats["n_prefill_tokens"] == len(TOKENS) and stats["n_decode_tokens"] == 11
    assert stats["n_generations"] == 1 and stats["n_generated_tokens"] == 12


@without_sanitizer
def test_memory_and_descriptors_stay_flat(path, tmp_path):
    def figures():
        gc.collect()
        with open("/proc/self/statm") as file:
            pages = int(file.read().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE"), len(os.listdir("/proc/self/fd"))

    with Engine(path, n_threads=1) as engine:
        for i in range(300):
            engine.complete(TOKENS[: 3 + i % 9], temperature=0, max_tokens=2)
            if i == 100:
                before = figures()
        after = figures()
    assert after[0] - before[0] < 2_000_000 and after[1] == before[1]
    for i in range(60):
        with Engine(path, n_threads=2) as engine:
            engine.complete(TOKENS, temperature=0, max_tokens=1)
        if i == 20:
            before = figures()
    after = figures()
    assert after[0] - before[0] < 4_000_000 and after[1] == before[1]
    assert str(path) not in Path("/proc/self/maps").read_text()


def test_dropping_the_engine_frees_the_mapping_at_once(path):
    gc.disable()
    try:
        engine = Engine(path)
        engine.complete(TOKENS, **GREEDY)
        assert str(path) in Path("/proc/self/maps").read_text()
        del engine
        assert str(path) not in Path("/proc/self/maps").read_text()
    finally:
        gc.enable()


@pytest.fixture(scope="module")
def long_path(tmp_path_factory):
    """A model whose prompt takes a while: 40 layers."""
    folder = tmp_path_factory.mktemp("long")
    return write_tiny(folder / "long.gguf", n_layer=40, n_ctx=8192, n_embd=256, n_ff=256).path


def test_cancel_and_ctrl_c_in_a_long_prompt(long_path):
    """Little is computed once it was asked to end: processor time, as others use the machine."""
    tokens = (TOKENS * 500)[:8000]
    asked_s = []

    def note():
        asked_s.append(time.process_time())

    with Engine(long_path, n_ctx=8192, n_threads=2) as engine:
        expected = engine.complete(TOKENS, **GREEDY).tokens
        threading.Timer(0.3, lambda: (note(), engine.cancel())).start()
        answer = engine.complete(tokens, **GREEDY)
        assert answer.finish_reason == "cancelled" and time.process_time() - asked_s[0] < 0.4
        interrupted(lambda: engine.complete(tokens, **GREEDY), after=0.3, before=note)
        assert time.process_time() - asked_s[1] < 0.4
        assert engine.complete(TOKENS, **GREEDY).tokens == expected


def test_close_while_another_thread_is_in_a_long_prompt(long_path):
    engine = Engine(long_path, n_ctx=8192, n_threads=2)
    outcome = []

    def work():
        try:
            engine.complete((TOKENS * 500)[:8000])
        except ClosedError as error:
            outcome.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    time.sleep(0.2)
    engine.close()
    thread.join(60)
    assert len(outcome) == 1


def run_script(body, path):
    head = f"import os, sys, time\nfrom moeengine import Engine\nengine = Engine({str(path)!r})\n"
    return subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", head + body],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_forked_child_gives_the_same_tokens(path):
    body = """
a = engine.complete([5, 17, 3, 99], temperature=0, max_tokens=6).tokens
pid = os.fork()
if pid == 0:
    try:
        b = engine.complete([5, 17, 3, 98, 4], temperature=0, max_tokens=6)
        c = engine.complete([5, 17, 3, 99], temperature=0, max_tokens=6).tokens
        engine.close()
        os._exit(0 if c == a else 3)
    except BaseException:
        os._exit(4)
end = time.monotonic() + 60
while True:
    done, status = os.waitpid(pid, os.WNOHANG)
    if done:
        break
    if time.monotonic() > end:
        os.kill(pid, 9)
        sys.exit('the child hangs')
    time.sleep(.01)
print(os.waitstatus_to_exitcode(status))
assert engine.complete([5, 17, 3, 99], temperature=0, max_tokens=6).tokens == a
"""
    done = run_script(body, path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")


@pytest.mark.parametrize(
    "body",
    ["engine.complete([1, 2], max_tokens=2)", "s = engine.generate('ab', stream=True); next(s)"],
)
def test_the_interpreter_ends_silently(path, body):
    done = run_script(body, path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_nothing_is_printed(path, capfd):
    with Engine(path) as engine:
        engine.complete("ab", **GREEDY)
    assert capfd.readouterr() == ("", "")


def test_the_command_line_generates(path, tmp_path):
    command = [sys.executable, "-m", "moeengine", "generate", "-m", str(path), "-p", "the inn"]
    done = subprocess.run([*command, "-n", "5", "--temp", "0"], cwd=ROOT, capture_output=True)
    assert done.returncode == 0 and done.stderr == b"" and done.stdout.endswith(b"\n")
    with Engine(path) as engine:
        text = engine.generate("the inn", temperature=0, max_tokens=5)
    assert done.stdout.decode() == text + "\n"
