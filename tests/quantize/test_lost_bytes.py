"""A model that is cut while it is written anew or checked: an error that says so, and no output left behind."""

import os

import pytest

from moeengine.cli import main
from moeengine.errors import SupplyError
from moeengine.loader.model_file import ModelFile
from moeengine.loader.model_info import find_bad_blocks
from moeengine.quantize.retier import parse_tiers, retier
from moeengine.quantize.rewrite import rewrite
from tests.loader.conditions import without_sanitizer
from tests.tiny import write_tiny

LAST = "blk.1.ffn_down_exps.weight"


@pytest.fixture
def path(tmp_path):
    return write_tiny(tmp_path / "in.gguf", quant="F32", n_embd=256, n_ff_exp=256, n_head=4, head_dim=64).path


def cut(path, n_bytes):
    """A progress callback that shortens the file by n_bytes at the first call."""

    def progress(*_):
        os.truncate(path, size - n_bytes)

    size = os.path.getsize(path)
    return progress


WRITERS = {
    "quantize": lambda path, out, progress: rewrite(path, out, "q8_0", progress=progress),
    "quantize, nothing to do": lambda path, out, progress: rewrite(path, out, "f32", progress=progress),
    "retier": lambda path, out, progress: retier(path, out, parse_tiers("4=q8_0,rest=q4_0"), [], progress=progress),
    "retier, nothing to do": lambda path, out, progress: retier(path, out, parse_tiers("4=keep,rest=keep"), [], progress=progress),
}  # fmt: skip


@without_sanitizer
@pytest.mark.parametrize("n_bytes", [1, 1 << 16])  # the first: only zeros at the end of a page tell
@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_cut_while_it_is_written_anew(path, tmp_path, write, n_bytes):
    with pytest.raises(SupplyError, match=r"in\.gguf: .*changed while in use"):
        write(path, tmp_path / "out.gguf", cut(path, n_bytes))
    assert os.listdir(tmp_path) == ["in.gguf"]


@without_sanitizer
@pytest.mark.parametrize("n_bytes", [1, 1 << 16])
def test_cut_while_it_is_checked(path, n_bytes):
    with ModelFile.open(path) as model, pytest.raises(SupplyError, match=r"in\.gguf: .*changed while in use"):
        list(find_bad_blocks(model, cut(path, n_bytes)))


def test_names_of_tensors_cannot_write_to_the_terminal(tmp_path, capsys):
    path = write_tiny(tmp_path / "a.gguf", n_layer=1, tensors={"x.\x1b]0;t\x07\r\n.weight": [1.0]}).path
    assert main(["quantize", str(path), str(tmp_path / "out.gguf"), "--type", "q4_0"]) == 0
    shown = capsys.readouterr()
    assert not any(c for c in shown.out + shown.err if ord(c) < 32 and c != "\n") and "\\x1b]0;t" in shown.err
