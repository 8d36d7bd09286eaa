"""The command line as a whole: exit statuses, one-line errors, pipes, signals, speed of --help."""

import os
import pty
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from moeengine import __version__
from moeengine.cli import COMMANDS, _parser, main

ROOT = Path(__file__).parents[2]
FAKE = """
import os, sys, pytest
from tests.engine.fakes import FakeModel, fake_engine
from moeengine.cli import main
def on_token(context):
    if len(context.held) == 5 and {ready}:
        os.write({ready}, b"x")
model = FakeModel(n_ctx_train=100000, delay_s={delay}, on_token=on_token)
fake_engine(pytest.MonkeyPatch(), model)
sys.exit(main(sys.argv[1:]))
"""


def run(*args, **more):
    return subprocess.run(
        [sys.executable, "-m", "moeengine", *args], cwd=ROOT, capture_output=True, text=True,
        **{"stdin": subprocess.DEVNULL, **more},
    )  # fmt: skip


def run_shell(line):
    return subprocess.run(line, shell=True, cwd=ROOT, capture_output=True, text=True)


def start_fake(*args, delay=0.01, ready=0, **more):
    """`generate` on a fake model; writes to the descriptor `ready` when the fifth token is done."""
    return subprocess.Popen(
        [sys.executable, "-c", FAKE.format(delay=delay, ready=ready), *args],
        cwd=ROOT,
        pass_fds=[ready] if ready else [],
        **more,
    )


def test_no_command_is_bad_usage():
    done = run()
    assert done.returncode == 2 and done.stdout == "" and done.stderr.startswith("usage:")


@pytest.mark.parametrize(
    "args",
    [
        ["fly"], ["generate", "--nonsense"], ["generate", "-n", "many"], ["--nonsense"],
        ["generate", "-p", "a", "-f", "b"], ["generate", "--moe-mode", "magic", "-p", "a"],
        ["generate", "--temp", "warm", "-p", "a"], ["info"],
        ["generate", "--logprobs", "1", "-p", "a"], ["generate", "--logit-bias", "a=1", "-p", "a"],
    ],
)  # fmt: skip
def test_bad_usage_is_two(args, capsys):
    assert main(args) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and "usage:" in captured.err and "error:" in captured.err


@pytest.mark.parametrize(
    "args, words",
    [
        (["generate", "--max-token", "5", "-p", "a"], "did you mean --max-tokens?"),
        (["quantize", "a", "b", "--type", "q8_0", "--tensor-types=a=q4_k"], "did you mean --tensor-type?"),
        (["generate", "hello"], "a text is given with -p"),
        (["info", "a", "--zzz"], "unrecognized arguments: --zzz"),
    ],
)  # fmt: skip
def test_an_unknown_option_shows_the_usage_of_its_command(args, words, capsys):
    assert main(args) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"usage: moeengine {args[0]} ") and words in error.splitlines()[-1]


@pytest.mark.parametrize("args", [(b"generate", b"-p"), (b"generate", b"--stop"), (b"chat", b"--system"), (b"tokenize", b"-p")])
def test_arguments_that_are_no_text(args):
    done = subprocess.run([os.fsencode(sys.executable), b"-m", b"moeengine", *args, b"ab\xff"], cwd=ROOT, capture_output=True,
                          env=os.environ | {"PYTHONUTF8": "1"}, stdin=subprocess.DEVNULL)  # fmt: skip
    assert done.returncode == 2 and b"found a byte after 2 characters that is no text" in done.stderr


def test_utf8_arguments_where_the_system_knows_only_ascii():
    env = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run([sys.executable, "-m", "moeengine", "tokenize", "--ids", "-p", "h\u00e4".encode()], cwd=ROOT,
                          capture_output=True, env=env)  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, run("tokenize", "--ids", "-p", "h\u00e4").stdout.encode(), b"")


def test_version_and_help(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"moeengine {__version__}\n"
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(name in text and summary in text for name, (_, summary) in COMMANDS.items())


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_defaults(command, capsys):
    assert main([command, "--help"]) == 0
    text = capsys.readouterr().out
    assert "--traceback" in text and text.startswith(f"usage: moeengine {command}")
    assert "None" not in text
    (commands,) = (a for a in _parser([command])._actions if a.choices)
    for action in commands.choices[command]._actions:
        needs_none = action.required or action.dest in ("help", "traceback", "prompt", "file")
        assert needs_none or "(default: " in action.help, action.option_strings


def test_only_the_chosen_command_is_imported_and_no_numpy_for_help():
    code = (
        "import sys\nfrom moeengine.cli import main\nmain(['generate', '--help'])\n"
        "unwanted = 'numpy', 'gguf', 'moeengine.cli.chat', 'moeengine.engine'\n"
        "print([m for m in unwanted if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.endswith("\n[]\n")


def test_help_is_quick():
    """Under 0.3 s; of processor time, since a busy machine takes longer to do as much."""
    before = os.times()
    for _ in range(3):
        assert run("--help").returncode == 0
    after = os.times()
    used = (
        after.children_user + after.children_system - before.children_user - before.children_system
    )
    assert used / 3 < 0.3


@pytest.mark.parametrize(
    "args, words",
    [
        (["generate", "-m", "missing.gguf", "-p", "a"], "missing.gguf"),
        (["info", "missing.gguf"], "missing.gguf"),
        (["info", "setup.py"], "setup.py"),
        (["tokenize", "-m", "missing.gguf", "-p", "a"], "missing.gguf"),
        (["generate", "-m", "missing.gguf", "-p", "a", "-c", "0"], "n_ctx"),
        (["generate", "-m", "missing.gguf", "-f", "missing.txt"], "missing.txt"),
        (["info", "missing.gguf", "-c", "-5"], "n_ctx"),
        (["info", ""], "empty path"),
        (["tokenize", "-f", "missing.txt"], "moeengine: missing.txt: "),
    ],
)
def test_an_error_is_one_line_and_one(args, words):
    done = run(*args)
    assert (done.returncode, done.stdout) == (1, "")
    assert (
        done.stderr.startswith("moeengine: ")
        and done.stderr.count("\n") == 1
        and words in done.stderr
    )


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams(closed):
    command = "generate -p a -m missing.gguf" if "<" not in closed else "chat -m missing.gguf"
    line = f'"{sys.executable}" -m moeengine {command} {closed}'
    done = run_shell(line)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert run_shell(f'"{sys.executable}" -m moeengine --version {closed}').returncode == 0


def test_traceback_on_request():
    done = run("info", "missing.gguf", "--traceback")
    assert done.returncode == 1 and "Traceback" in done.stderr and "GGUFError" in done.stderr


def test_a_pipe_closed_early_is_quiet():
    process = start_fake("generate", "-m", "x", "-p", "a", "-n", "500", "--temp", "0",
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip
    process.stdout.read(1)
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(60) == 1


@pytest.mark.parametrize("number, status", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("prompt", ["a", "a" * 2000])
def test_signals_end_it_soon(number, status, prompt):
    reader, ready = os.pipe()
    process = start_fake(
        *("generate", "-m", "x", "-p", prompt, "-n", "5000"),
        delay=0.02,
        ready=ready,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    os.close(ready)
    assert os.read(reader, 1) == b"x"
    os.close(reader)
    start = time.monotonic()
    process.send_signal(number)
    assert process.wait(60) == status
    assert time.monotonic() - start < 10  # not the 40 s that the work would take
    assert process.stderr.read() == b""


def test_sigterm_ends_process_1_of_a_container():
    """Where signals without a handler do nothing."""
    new = ["unshare", "--pid", "--fork", "--kill-child"]
    if shutil.which("unshare") is None or subprocess.run([*new, "true"], capture_output=True).returncode:
        pytest.skip("the system grants no namespace of process ids")
    reader, ready = os.pipe()
    code = FAKE.format(delay=0.01, ready=ready).replace("import os", "import os; assert os.getpid() == 1; import os", 1)
    process = subprocess.Popen([*new, sys.executable, "-c", code, "generate", "-m", "x", "-p", "a", "-n", "5000"],
                               cwd=ROOT, pass_fds=[ready], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)  # fmt: skip
    os.close(ready)
    assert os.read(reader, 1) == b"x"
    os.close(reader)
    (inside,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(inside), signal.SIGTERM)
    assert process.wait(60) == 143 and process.stderr.read() == b""


@pytest.mark.parametrize("name, status", [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_signal_inside_an_import_ends_it(tmp_path, name, status):
    (tmp_path / "interrupted.py").write_text(
        "import os, signal\n"
        f"try:\n    os.kill(os.getpid(), signal.{name})\n    [0 for _ in range(10**6)]\n"
        "except BaseException as error:\n    raise ImportError('as extension modules do') from error\n"
    )
    code = ("import sys; from moeengine import cli; cli.COMMANDS['x'] = ('interrupted', 'a test');"
            "sys.exit(cli.main(['x']))")  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, timeout=60,
                          env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])})  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (status, b"", b"")


def test_progress_only_on_a_terminal():
    main_fd, terminal = pty.openpty()
    process = start_fake("generate", "-m", "x", "-p", "a" * 100, "-n", "2", "--ubatch", "10",
                         stdout=subprocess.PIPE, stderr=terminal)  # fmt: skip
    out = process.stdout.read()
    assert process.wait(60) == 0
    os.close(terminal)
    shown = os.read(main_fd, 100_000).decode()
    os.close(main_fd)
    assert "prompt: " in shown and " of 101 tokens" in shown and "ended by length" in shown
    assert b"prompt: " not in out
