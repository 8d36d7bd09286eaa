"""Mellum 2: windows and the rope of their layers. Logits: test_archs.py."""

from dataclasses import replace

import pytest

from moeengine.errors import GGUFError
from tests.arch_models import ARCH_MODELS, prompt, write_arch
from tests.arch_parts import yarn
from tests.graph.test_reference import load, logits

WINDOW, PATTERN = "attention.sliding_window", "attention.sliding_window_pattern"
UNSCALED = dict.fromkeys(yarn())


def made(path, name="mellum", **keys):
    return logits(load(write_arch(path / "m.gguf", name, metadata=keys)), prompt()).tobytes()


@pytest.mark.parametrize("window", [None, 0])
def test_without_a_window_it_is_qwen3moe(tmp_path, monkeypatch, window):
    want = made(tmp_path, **{WINDOW: window})
    monkeypatch.setitem(ARCH_MODELS, "mellum", replace(ARCH_MODELS["mellum"], arch="qwen3moe"))
    assert made(tmp_path, **{WINDOW: None}) == want


def test_layers_with_a_window_do_not_stretch_their_angles(tmp_path):
    everywhere = {PATTERN: 0}
    assert made(tmp_path, **everywhere) == made(tmp_path, **everywhere | UNSCALED)
    assert made(tmp_path) != made(tmp_path, **UNSCALED)


@pytest.mark.parametrize("pattern, flags", [(None, [1, 1, 1]), (2, [1, 0, 1]), (3, [1, 1, 0])])
def test_windows_by_number(tmp_path, pattern, flags):
    assert made(tmp_path, **{PATTERN: pattern}) == made(tmp_path, **{PATTERN: [bool(flag) for flag in flags]})


@pytest.mark.parametrize("key, value", [
    (WINDOW, -1), (WINDOW, "x"), (PATTERN, [True, False]), (PATTERN, -1), (PATTERN, "x"), ("rope.scaling.factor", -1.0),
    ("rope.freq_base", 0.0),
])  # fmt: skip
def test_bad_metadata_is_refused_with_the_key(tmp_path, key, value):
    with pytest.raises(GGUFError, match=key):
        load(write_arch(tmp_path / "m.gguf", "mellum", metadata={key: value}))
