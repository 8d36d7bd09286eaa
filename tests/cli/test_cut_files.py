"""A model file that is cut off: every command refuses it with the tensor's name, and leaves nothing behind."""

import os

import pytest

from moeengine.cli import COMMANDS, main
from tests.tiny import write_tiny

ARGUMENTS = {
    "generate": ("-p", "a", "-m", "{}"), "chat": ("-m", "{}"), "info": ("{}",), "bench": ("-m", "{}"),
    "perplexity": ("-p", "a", "-m", "{}"), "trace": ("-p", "a", "-m", "{}", "--save", "out"),
    "expert-map": ("{}", "-o", "out"), "quantize": ("{}", "out", "--type", "q4_0"),
    "retier": ("{}", "out", "--tiers", "2=keep,rest=keep"),
}  # fmt: skip
READ_NO_WEIGHTS = {"tokenize", "iobench"}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_refuses_it(tmp_path, capsys, monkeypatch, command):
    assert COMMANDS.keys() == ARGUMENTS.keys() | READ_NO_WEIGHTS
    if command in READ_NO_WEIGHTS:
        return
    path = write_tiny(tmp_path / "cut.gguf").path
    os.truncate(path, os.path.getsize(path) - 1)
    monkeypatch.chdir(tmp_path)
    assert main([command, *(word.format(path) for word in ARGUMENTS[command])]) == 1
    captured = capsys.readouterr()
    assert captured.out == "" and "cut.gguf: tensor 'blk.1.ffn_down_exps.weight'" in captured.err
    assert os.listdir(tmp_path) == ["cut.gguf"]
