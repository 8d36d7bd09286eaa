"""`info` and `tokenize` on tiny files: figures, escapes, bad weights, exit statuses."""

import json
import math
import re

import numpy as np
import pytest

from moeengine.cli import main
from moeengine.loader.model_file import ModelFile
from moeengine.loader.model_info import find_bad_blocks
from moeengine.stats import shown_bytes
from tests.tokenizer.vocabs import write_byte_bpe
from tests.tiny import QType, write_gguf, write_tiny


def test_a_dense_model_has_no_experts(tmp_path, capsys):
    tiny = write_tiny(tmp_path / "a.gguf", "llama")
    assert main(["info", str(tiny.path)]) == 0
    out = capsys.readouterr().out
    assert "architecture   llama" in out and "experts        none" in out


def test_an_architecture_there_is_not_is_described_all_the_same(tmp_path, capsys):
    metadata = {f"mamba-moe.{key}": 4 for key in ("block_count", "embedding_length", "attention.head_count")}
    tensors = {"token_embd.weight": (np.zeros((4, 4), np.float32), QType.F32)}
    assert main(["info", str(write_gguf(tmp_path / "a.gguf", "mamba-moe", metadata, tensors))]) == 0
    assert "architecture   mamba-moe, which is not supported\n" in capsys.readouterr().out


def test_info_prints_a_split_model_whole(tmp_path, capsys):
    tiny = write_tiny(tmp_path / "a.gguf", n_shards=3)
    assert main(["info", str(tiny.path), "--json"]) == 0
    info = json.loads(capsys.readouterr().out)
    assert info["n_shards"] >= 2 and info["experts"]["n_layer"] == 2
    assert info["metadata"]["general.architecture"] == "qwen3moe"


def test_names_from_a_file_cannot_write_to_the_terminal(tmp_path, capsys):
    tiny = write_tiny(
        tmp_path / "a.gguf",
        metadata={"general.name": "a\x1b[31m\r\nb\x00", "x.\x07y": ["\x1b]0;t"]},
    )
    assert main(["info", str(tiny.path)]) == 0
    out = capsys.readouterr().out
    assert not any(c for c in out if ord(c) < 32 and c != "\n") and "\\x1b" in out
    assert main(["info", str(tiny.path), "--json"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_check_finds_the_expert_with_nan(tmp_path, capsys):
    tiny = write_tiny(tmp_path / "a.gguf", n_expert=4)
    assert main(["info", str(tiny.path), "--check"]) == 0
    assert "every weight is a finite number" in capsys.readouterr().out
    name = "blk.1.ffn_up_exps.weight"
    with ModelFile.open(tiny.path) as file:
        info = file.tensors[name]
        expert_bytes = info.n_bytes // 4
    data = bytearray(tiny.path.read_bytes())
    at = info.offset + 2 * expert_bytes  # scale of the first block of expert 2
    data[at : at + 2] = np.float16(math.nan).tobytes()
    tiny.path.write_bytes(data)
    with ModelFile.open(tiny.path) as file:
        assert list(find_bad_blocks(file)) == [(name, 2, 1, expert_bytes // 34)]
    assert main(["info", str(tiny.path), "--check"]) == 1
    assert f"{name}, expert 2: 1 of " in capsys.readouterr().out


def test_sizes_are_rounded_in_one_way(tmp_path, capsys):
    assert [shown_bytes(n) for n in (0, 999, 1000, 12340, 123400, 999499, 999600, 1640591520, 5 * 10**15)] == [
        "0 B", "999 B", "1.00 kB", "12.3 kB", "123 kB", "999 kB", "1.00 MB", "1.64 GB", "5000 TB"]  # fmt: skip
    path = str(write_tiny(tmp_path / "a.gguf").path)
    assert main(["info", path]) == 0
    size = re.search(r"^file +(\S+ \S+) in ", capsys.readouterr().out, re.M)[1]
    assert main(["generate", "-m", path, "-p", "a", "-n", "1", "-v"]) == 0
    assert f"file {size}, room " in capsys.readouterr().err


def test_tokens_are_shown_with_each_byte_once(tmp_path, capsys):
    path = str(write_byte_bpe(tmp_path / "v.gguf"))
    assert main(["tokenize", "-m", path, "-p", "\u00e4'\\\x1b\n a"]) == 0
    shown = [line.lstrip().split("  ", 1)[1] for line in capsys.readouterr().out.splitlines()]
    assert shown == ["'\\xc3'", "'\\xa4'", "'\\''", "'\\\\'", "'\\x1b'", "'\\n'", "' '", "'a'"]


def test_a_cut_file_is_an_error(tmp_path, capsys):
    tiny = write_tiny(tmp_path / "a.gguf")
    data = tiny.path.read_bytes()
    tiny.path.write_bytes(data[:-100])
    assert main(["info", str(tiny.path)]) == 1
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1


@pytest.mark.parametrize("text", ["the inner alien", "häß 😀\n"])
def test_tokenize(tmp_path, capsys, text):
    tiny = write_tiny(tmp_path / "a.gguf")
    command = ["tokenize", "-m", str(tiny.path), "-p", text]
    assert main([*command, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert len(report["tokens"]) == len(report["texts"])
    assert main([*command, "--ids"]) == 0
    assert capsys.readouterr().out.split() == [str(i) for i in report["tokens"]]
    assert main(command) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(report["tokens"])


def test_tokenize_control_tokens(tmp_path, capsys):
    tiny = write_tiny(tmp_path / "a.gguf")
    command = ["tokenize", "-m", str(tiny.path), "-p", "<|im_end|>", "--ids", "--no-add-special"]
    assert main([*command, "--parse-special"]) == 0
    assert len(capsys.readouterr().out.split()) == 1
    assert main(command) == 0
    assert len(capsys.readouterr().out.split()) > 1
