"""What cannot be written: noticed before the work, and always told with the file's name."""

import contextlib
import json
import os
import pty
import resource
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from moeengine import Engine
from moeengine.cli import main
from moeengine.models import default_model_path
from tests.tiny import write_tiny

ROOT = Path(__file__).parents[2]


@contextlib.contextmanager
def small_files(n_bytes):
    """Writing more than n_bytes to a file fails, as on a full disk: an error of the system that names no file."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("command", [
    ("trace", "-m", "none.gguf", "-p", "a", "--save", "{}"),
    ("trace", "-m", "none.gguf", "-p", "a", "--plot", "{}"),
    ("expert-map", "none.gguf", "-o", "{}", "--force"),
])  # fmt: skip
@pytest.mark.parametrize("place", ["missing/out.png", "file/out.png", "folder.png", "pipe.png", "x" * 300 + ".png"])
def test_an_output_that_cannot_be_is_refused_before_the_model_is_opened(tmp_path, capsys, command, place):
    if "--plot" in command:
        pytest.importorskip("matplotlib", reason="matplotlib draws the plot, and is an extra")
    (tmp_path / "file").write_text("")
    (tmp_path / "folder.png").mkdir()
    os.mkfifo(tmp_path / "pipe.png")
    before = sorted(os.listdir(tmp_path))
    path = str(tmp_path / place)
    assert main([word.format(path) for word in command]) == 1
    error = capsys.readouterr().err
    assert path in error and "none.gguf" not in error and error.count("\n") == 1
    assert sorted(os.listdir(tmp_path)) == before


def test_a_picture_of_an_unknown_kind(tmp_path, capsys):
    pytest.importorskip("matplotlib", reason="matplotlib draws the plot, and is an extra")
    assert main(["trace", "-m", "none.gguf", "-p", "a", "--plot", str(tmp_path / "a.xyz")]) == 1
    assert "a.xyz: found no such format, expected one of" in capsys.readouterr().err


def test_a_full_disk_is_told_with_the_name(tmp_path, capsys):
    tiny = write_tiny(tmp_path / "in.gguf", quant="F32", n_embd=256, n_ff_exp=256, n_head=4, head_dim=64)
    out = str(tmp_path / "out")
    for command in (
        ("quantize", str(tiny.path), out, "--type", "q8_0", "-q"),
        ("retier", str(tiny.path), out, "--tiers", "2=q8_0,rest=keep", "-q"),
    ):
        with small_files(1 << 16):
            assert main(command) == 1
        assert f"moeengine: {out}: " in capsys.readouterr().err
    with Engine(default_model_path(), n_ctx=256) as engine:
        session = engine.session()
        session.eval(list(range(1, 200)))
        with pytest.raises(OSError) as caught, small_files(1 << 12):
            session.save(out)
    assert caught.value.filename == out
    with small_files(100):
        assert main(["expert-map", str(default_model_path()), "-o", out]) == 1
    assert f"moeengine: {out}: " in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["in.gguf"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("command", ["generate -p a -n 3", "generate -p a -n 3 --json", "tokenize -p a", "info {}"])
def test_standard_output_that_is_full(command):
    words = command.format(default_model_path()).split()
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-m", "moeengine", *words], cwd=ROOT, stdout=full, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (1, b"moeengine: standard output: No space left on device\n")


def test_in_a_folder_that_is_gone(tmp_path):
    folder = tmp_path / "gone"
    folder.mkdir()
    code = ("import os, sys; os.rmdir(os.getcwd()); from moeengine.cli import main\n"
            "for args in sys.argv[1:]: print(main(args.split()))")  # fmt: skip
    commands = "generate -p a -n 1", "trace -p a --save x", f"quantize {default_model_path()} x --type q8_0"
    done = subprocess.run([sys.executable, "-c", code, *commands], cwd=folder, capture_output=True, text=True,
                          env=os.environ | {"PYTHONPATH": str(ROOT)})  # fmt: skip
    assert done.stdout.split()[-3:] == ["0", "1", "1"]
    assert "moeengine: x: No such file" in done.stderr and "x: cannot find the current folder" in done.stderr


def test_saved_experts_are_whole_or_not_there(tmp_path, capsys):
    out = tmp_path / "experts.json"
    out.write_text("before")
    with small_files(100):
        assert main(["trace", "-p", "Once upon a time", "-n", "8", "--save", str(out)]) == 1
    assert out.read_text() == "before" and os.listdir(tmp_path) == ["experts.json"]
    assert main(["trace", "-p", "Once upon a time", "-n", "8", "--save", str(out)]) == 0
    assert json.loads(out.read_text())["experts"]


@pytest.mark.parametrize("limit_mb, words", [(400, "cannot map 600 MB"), (900, "MB for the context")])
def test_little_address_space_is_told_with_both_numbers(tmp_path, limit_mb, words):
    path = write_tiny(tmp_path / "a.gguf").path
    os.truncate(path, 600 * 10**6)  # a hole: nothing is written
    code = (f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({limit_mb * 10**6},) * 2);"
            "import sys; from moeengine.cli import main; sys.exit(main(sys.argv[1:]))")  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", code, "generate", "-m", str(path), "-p", "a", "-c", "5000000", "-t", "1"], cwd=ROOT,
        capture_output=True, text=True, env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 1 and done.stderr.splitlines()[-1].startswith("moeengine: ")
    assert words in done.stderr and f"limited to {limit_mb} MB (ulimit -v)" in done.stderr


def test_ctrl_c_at_the_prompt_of_a_chat_ends_its_line():
    main_fd, terminal = pty.openpty()
    process = subprocess.Popen([sys.executable, "-m", "moeengine", "chat"], cwd=ROOT,
                               stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True)  # fmt: skip
    os.close(terminal)
    shown = b""
    while b"> " not in shown:
        shown += os.read(main_fd, 1000)
    shown = b""
    with contextlib.suppress(OSError):  # which is how a terminal tells that its program has ended
        while True:
            if select.select([main_fd], [], [], 0.5)[0]:
                shown += os.read(main_fd, 1000)
            elif process.poll() is None:
                process.send_signal(signal.SIGINT)  # again: one that comes just before input() waits is not seen
    os.close(main_fd)
    assert process.wait(60) == 130 and shown.endswith(b"\r\n")
