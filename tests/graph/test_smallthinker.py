"""SmallThinker: what its files say of windows, and the router that chooses before attention. Logits: test_archs.py."""

import functools

import numpy as np
import pytest

from moeengine import Engine
from moeengine.errors import GGUFError
from moeengine.graph.arch import smallthinker
from tests.arch_models import prompt, write_arch
from tests.graph.test_reference import load, logits
from tests.odd_values import count_refused


def made(path, **keys):
    return logits(load(write_arch(path / "m.gguf", "smallthinker-deep", metadata=keys)), prompt())


def test_the_window_has_4096_keys_whatever_the_file_says(tmp_path, monkeypatch):
    want = made(tmp_path)
    assert made(tmp_path, **{"attention.sliding_window": 40}).tobytes() == want.tobytes()
    monkeypatch.setattr(smallthinker, "WINDOW", 40)
    assert (made(tmp_path) == want).all(-1).tolist() == [True] * 40 + [False] * 152


@pytest.mark.parametrize("pattern, flags", [(2, [0, 1, 0, 1, 0]), (0, [1] * 5), (4, [0, 1, 1, 1, 0])])
def test_the_first_of_so_many_layers_has_no_window(tmp_path, monkeypatch, pattern, flags):
    monkeypatch.setattr(smallthinker, "WINDOW", 40)
    key = "attention.sliding_window_pattern"
    assert made(tmp_path, **{key: pattern}).tobytes() == made(tmp_path, **{key: np.array(flags, bool)}).tobytes()


def test_without_a_window_all_layers_rotate(tmp_path):
    got = [made(tmp_path, **{"attention.sliding_window": n}).tobytes() for n in (None, 0, 4096)]
    assert got[0] == got[1] != got[2]


def test_experts_are_chosen_before_attention(tmp_path):
    """What attention adds has no part in the choice of the first layer; it has in that of the second."""
    path, tiny = tmp_path / "m.gguf", write_arch(tmp_path / "a.gguf", "smallthinker-rope")
    qtype = tiny.tensors["blk.0.attn_norm.weight"][1]
    chosen = []
    for factor in (1, 3):
        name = "blk.0.attn_output.weight"
        write_arch(path, "smallthinker-rope", tensors={name: (tiny.tensors[name][0] * np.float32(factor), qtype)})
        with Engine(path, n_threads=1) as engine:
            context = engine.session()._context
            context.record_routing = True
            context.forward(prompt()[:50], 0, "none")
            chosen.append(context.trace.copy())
    assert np.array_equal(chosen[0][0], chosen[1][0])
    assert not np.array_equal(chosen[0][1], chosen[1][1])


@pytest.mark.parametrize("key, value", [
    ("attention.sliding_window", -1), ("attention.sliding_window", "x"), ("attention.sliding_window", 1 << 31),
    ("attention.sliding_window_pattern", -1), ("attention.sliding_window_pattern", [True, False]),
    ("rope.freq_base_swa", 0.0), ("rope.freq_base_swa", "x"), ("expert_gating_func", None), ("attention.head_count_kv", 0),
])  # fmt: skip
def test_bad_metadata_is_refused_with_the_key(tmp_path, key, value):
    with pytest.raises(GGUFError, match=key):
        load(write_arch(tmp_path / "m.gguf", "smallthinker", metadata={key: value}))


def test_any_value_of_its_own_keys_works_or_is_refused(tmp_path):
    keys = ("attention.sliding_window", "attention.sliding_window_pattern", "rope.freq_base_swa", "expert_gating_func")
    write = functools.partial(write_arch, name="smallthinker")
    assert count_refused(tmp_path / "a.gguf", write, keys) > 20
