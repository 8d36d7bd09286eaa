"""`generate` and `chat` on a fake model: where the prompt comes from, what is printed where."""

import io
import json
import sys

import pytest

from moeengine.cli import main
from tests.arch_models import write_arch
from tests.engine.fakes import BOS, EOS, IM_END, FakeModel, fake_engine


class Stdin(io.TextIOWrapper):
    def __init__(self, data, is_terminal=False):
        super().__init__(io.BytesIO(data), encoding="utf-8")
        self._is_terminal = is_terminal

    def isatty(self):
        return self._is_terminal


@pytest.fixture
def model(monkeypatch):
    monkeypatch.setattr(sys, "stdin", Stdin(b"", is_terminal=True))
    return fake_engine(monkeypatch, FakeModel(n_ctx_train=256))[1]


def generate(*args):
    return main(["generate", "-m", "x.gguf", "--temp", "0", *args])


def test_text_on_stdout_and_nothing_else(model, capsys):
    model.say(3, [*"hällo 😀".encode(), EOS])
    assert generate("-p", "ab") == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("hällo 😀\n", "")


def test_json_is_one_object_a_line(model, capsys):
    model.say(3, [*b"a\nb", EOS])
    assert generate("-p", "ab", "--json", "--logprobs", "2", "--seed", "7") == 0
    (line,) = capsys.readouterr().out.splitlines()
    answer = json.loads(line)
    assert answer["text"] == "a\nb" and answer["tokens"] == list(b"a\nb") and answer["seed"] == 7
    assert answer["finish_reason"] == "stop" and answer["n_prompt"] == 3
    assert [p["token"] for p in answer["logprobs"]] == answer["tokens"]
    assert len(answer["logprobs"][0]["top"]) == 2


def test_prompt_from_a_file_and_from_stdin(model, capsys, monkeypatch, tmp_path):
    (tmp_path / "p.txt").write_bytes("zwölf\n\n".encode())
    for args, data in (
        (["-f", str(tmp_path / "p.txt")], b""),
        ([], "zwölf\n\n".encode()),
        (["-f", "-"], "zwölf\r\n".encode()),
    ):
        monkeypatch.setattr(sys, "stdin", Stdin(data))
        assert generate(*args, "-n", "0") == 0
        held = bytes(model.contexts[-1].held[1:]).decode()
        assert held == ("zwölf" if "-" in args else "zwölf\n")


def test_no_prompt_on_a_terminal_is_bad_usage(model, capsys):
    assert generate() == 2
    assert "-p TEXT" in capsys.readouterr().err


def test_a_file_that_is_no_text(model, capsys, tmp_path):
    (tmp_path / "p.bin").write_bytes(b"ab\xff")
    assert generate("-f", str(tmp_path / "p.bin")) == 1
    assert "byte 2" in capsys.readouterr().err


def test_a_text_that_never_ends(model, capsys, monkeypatch):
    monkeypatch.setattr("moeengine.cli.options.MAX_TEXT_BYTES", 1000)
    assert generate("-f", "/dev/zero") == 1
    assert "/dev/zero: found more than 1000 bytes" in capsys.readouterr().err
    monkeypatch.setattr(sys, "stdin", Stdin(b"a" * 1001))
    assert generate() == 1
    assert "standard input: found more than" in capsys.readouterr().err


def test_options_reach_the_engine(model, capsys):
    model.say(3, [*b"stop here", EOS])
    assert generate("-p", "ab", "--stop", "here", "--stop", "zzz") == 0
    assert capsys.readouterr().out == "stop \n"
    assert generate("-p", "ab", "-n", "3") == 0
    assert capsys.readouterr().out == "sto\n"
    assert (
        generate(
            "-p", "ab", "-n", "1", "--logit-bias", f"{ord('s')}=-inf", "--logit-bias", "65=999"
        )
        == 0
    )
    assert capsys.readouterr().out == "A\n"
    assert (
        generate(
            "-p",
            "ab",
            "--ignore-eos",
            "-n",
            "10",
            "--top-k",
            "5",
            "-c",
            "20",
            "--ubatch",
            "4",
            "-t",
            "1",
        )
        == 0
    )
    assert model.contexts[-1].n_ctx == 20 and model.contexts[-1].n_ubatch == 4
    capsys.readouterr()
    assert generate("-p", "ab", "--logit-bias", "a=1") == 2
    assert "found 'a=1', expected ID=X" in capsys.readouterr().err
    assert generate("-p", "ab", "--top-p", "1.5") == 1
    assert capsys.readouterr().err.startswith("moeengine: top_p: found 1.5")


def test_control_tokens_in_a_prompt(model):
    generate("-p", "<|im_end|>", "-n", "0")
    assert model.contexts[-1].held == [BOS, IM_END]
    generate("-p", "<|im_end|>", "-n", "0", "--no-special")
    assert model.contexts[-1].held == list(b"<|im_end|>")


def test_a_prompt_that_cannot_fit(model, capsys):
    assert generate("-p", "a" * 300) == 1
    err = capsys.readouterr().err
    assert "301 tokens" in err and "256" in err and err.count("\n") == 1


def test_no_model(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "moeengine.models", None)
    assert main(["generate", "-p", "a"]) == 1
    assert "expected -m FILE" in capsys.readouterr().err


# -- chat -------------------------------------------------------------------------------------


@pytest.fixture
def chat(model, monkeypatch):
    """chat(lines, *args) -> exit status; the template is `role:content|` and `bot:`."""
    from moeengine.engine.runtime import Runtime

    class Template:
        seen = []

        @classmethod
        def encode(cls, messages, **variables):
            cls.seen.append([(m["role"], m["content"]) for m in messages])
            text = "".join(f"{m['role'][0]}:{m['content']}|" for m in messages)
            return [BOS, *text.encode()]

    monkeypatch.setattr(Runtime, "chat_template", lambda self, source: Template)

    def run(lines, *args):
        Template.seen.clear()
        monkeypatch.setattr(sys, "stdin", Stdin("".join(f"{x}\n" for x in lines).encode()))
        return main(["chat", "-m", "x", "--temp", "0", "-n", "4", *args])

    run.seen = Template.seen
    return run


def test_a_file_without_vocabulary_is_refused_before_the_first_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", Stdin(b""))
    assert main(["chat", "-m", str(write_arch(tmp_path / "m.gguf", "dots1").path), "-t", "1"]) == 1
    assert "no vocabulary" in capsys.readouterr().err


def test_a_conversation_from_a_pipe(chat, model, capsys):
    model.say(6, [*b"yes", EOS])
    assert chat(["hi", "", "more", "/clear", "new", "/exit", "never"], "--system", "S") == 0
    captured = capsys.readouterr()
    answers = captured.out.splitlines()
    assert captured.err == "" and len(chat.seen) == 3
    assert chat.seen[0] == [("system", "S"), ("user", "hi")]
    assert chat.seen[1][:2] == chat.seen[0] and chat.seen[1][2][0] == "assistant"
    assert chat.seen[1][3] == ("user", "more") and chat.seen[2] == [
        ("system", "S"),
        ("user", "new"),
    ]
    assert len(answers) >= 3


def test_chat_reads_utf8_and_nothing_else(chat, model, capsys, monkeypatch):
    assert chat(["zwölf"]) == 0 and chat.seen[0] == [("user", "zwölf")]
    monkeypatch.setattr(sys, "stdin", Stdin(b"hi\nab\xff\n"))
    assert main(["chat", "-m", "x", "-n", "1"]) == 1
    assert "line 2: found byte 2" in capsys.readouterr().err


def test_chat_answers_as_json(chat, model, capsys):
    model.say(6, [*b"yes", EOS])
    assert chat(["hi"], "--json") == 0
    assert json.loads(capsys.readouterr().out)["text"] == "yes"


def test_chat_reuses_the_conversation(chat, model, capsys):
    assert chat(["hello", "again"], "--json") == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["n_reused"] == 0 and second["n_reused"] >= first["n_prompt"]


def test_chat_that_no_longer_fits_ends_a_pipe_with_an_error(chat, model, capsys):
    assert chat(["x" * 300]) == 1
    assert "256" in capsys.readouterr().err


def test_chat_says_when_the_context_ends_an_answer(chat, model, capsys):  # B176
    assert chat(["x" * 100], "-n", "-1") == 0
    assert "context is full" in capsys.readouterr().err
    assert chat(["x" * 100], "-n", "3") == 0
    assert capsys.readouterr().err == ""
