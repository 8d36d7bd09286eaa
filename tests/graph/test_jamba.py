"""Jamba's Mamba-1 layers: what their files may say, and their memory. Their state: test_hybrid.py; logits: test_archs.py."""

import functools

import pytest

from moeengine.errors import GGUFError, NumericError
from moeengine.loader.model_info import describe, recurrent_bytes
from tests.arch_models import write_arch
from tests.graph.test_reference import load
from tests.odd_values import compute_not_finite, count_refused

KEYS = ["ssm.conv_kernel", "ssm.inner_size", "ssm.state_size", "ssm.time_step_rank"]


@pytest.mark.parametrize("key, value, words", [
    *((key, value, key) for key in KEYS for value in (None, 0, -1, 1 << 31, 2.0, "x", [4, 4])),
    ("ssm.inner_size", 64, "ssm_in"), ("ssm.state_size", 32, "ssm_x"), ("ssm.time_step_rank", 4, "ssm_x"),
    ("ssm.conv_kernel", 3, "ssm_conv1d.*128 x 4.*128 x 3"), ("attention.head_count_kv", 1, "blk.0.attn_q"),
    ("attention.head_count_kv", 0, "blk.2.ssm_in"), ("attention.head_count_kv", [0, 0], "head_count_kv.*5 elements"),
], ids=lambda v: str(v)[:40])  # fmt: skip
def test_bad_metadata_is_refused_with_the_key(tmp_path, key, value, words):
    with pytest.raises(GGUFError, match=words):
        load(write_arch(tmp_path / "m.gguf", "jamba", metadata={key: value}))


def test_any_value_of_their_own_keys_works_or_is_refused(tmp_path):
    write = functools.partial(write_arch, name="jamba")
    assert count_refused(tmp_path / "a.gguf", write, (*KEYS, "attention.head_count_kv"), also=NumericError) > 50


def test_values_that_are_not_finite_do_not_crash(tmp_path):
    names = ("ssm_a", "ssm_d", "ssm_dt.bias", "ssm_conv1d.weight", "ssm_conv1d.bias", "ssm_b_norm.weight")
    write = functools.partial(write_arch, name="jamba")
    compute_not_finite(tmp_path / "m.gguf", write, write(tmp_path / "a.gguf"), [f"blk.0.{name}" for name in names])


def test_memory_is_counted(tmp_path):
    model = load(write_arch(tmp_path / "m.gguf", "jamba"))
    n_state = 4 * (3 * 128 + 128 * 16)
    assert model.sizes.n_recurrent == n_state
    assert recurrent_bytes(model.file) == 8 * n_state  # and a copy
    assert describe(model.file, 64).kv_bytes == model.kv_bytes(64) == 64 * 2 * 2 * 32 + 8 * n_state
