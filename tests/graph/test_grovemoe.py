"""GroveMoE: experts that several others share. Logits: test_archs.py."""

import functools

import numpy as np
import pytest

from moeengine.errors import GGUFError
from tests.arch_models import prompt, write_arch
from tests.arch_parts import F
from tests.graph.test_reference import load, logits
from tests.odd_values import count_refused

KEYS = ("experts_per_group", "expert_group_scale", "expert_chunk_feed_forward_length")


def test_without_their_scale_it_is_qwen3moe(tmp_path):
    tiny = write_arch(tmp_path / "m.gguf", "grovemoe")
    without = logits(load(write_arch(tmp_path / "a.gguf", "grovemoe", metadata={"expert_group_scale": 0.0})), prompt())
    zeros = {name: (np.zeros_like(array), qtype) for name, (array, qtype) in tiny.tensors.items() if "down_chexps" in name}
    assert len(zeros) == 2
    assert np.array_equal(without, logits(load(write_arch(tmp_path / "a.gguf", "grovemoe", tensors=zeros)), prompt()))
    assert not np.array_equal(without, logits(load(tiny), prompt()))


@pytest.mark.parametrize("n_used", [1, 4, 5, 8])
def test_any_number_of_experts(tmp_path, n_used):
    """More than there are shared ones: the best of them choose."""
    model = load(write_arch(tmp_path / "m.gguf", "grovemoe", metadata={"expert_used_count": n_used}))
    want = logits(model, prompt(), n_ubatch=192)
    assert np.isfinite(want).all()
    assert logits(model, prompt(), n_ubatch=7).tobytes() == want.tobytes()


@pytest.mark.parametrize("key, value, words", [
    *((key, value, key) for key in KEYS for value in ("x", [2, 2])),
    ("experts_per_group", None, "experts_per_group"), ("experts_per_group", 0, "experts_per_group"),
    ("experts_per_group", 3, "experts_per_group.*divisor"), ("experts_per_group", 4, "chexps"), ("experts_per_group", 1, "chexps"),
    ("expert_group_scale", None, "expert_group_scale"), ("expert_chunk_feed_forward_length", -1, "chunk_feed_forward_length"),
    ("expert_chunk_feed_forward_length", F, "chexps"), ("expert_chunk_feed_forward_length", 0, "chexps"),
])  # fmt: skip
def test_bad_metadata_is_refused_with_the_key(tmp_path, key, value, words):
    with pytest.raises(GGUFError, match=words):
        load(write_arch(tmp_path / "m.gguf", "grovemoe", metadata={key: value}))


def test_a_missing_or_odd_tensor_is_named(tmp_path):
    tiny, path = write_arch(tmp_path / "a.gguf", "grovemoe"), tmp_path / "m.gguf"
    qtype = tiny.tensors["blk.0.attn_norm.weight"][1]
    for name in tiny.tensors:
        if "_chexps" in name:
            for wrong in (None, (3, 5), (7,), (4, 8, 8), (1, 2, 3, 4)):
                tensor = wrong and (np.zeros(wrong, np.float32), qtype)
                with pytest.raises(GGUFError, match=name.removesuffix(".weight")):
                    load(write_arch(path, "grovemoe", tensors={name: tensor}))


def test_any_value_of_its_own_keys_works_or_is_refused(tmp_path):
    keys = KEYS
    write = functools.partial(write_arch, name="grovemoe")
    assert count_refused(tmp_path / "a.gguf", write, keys) > 20
