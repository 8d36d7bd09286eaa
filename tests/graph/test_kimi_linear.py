"""Kimi delta attention: what its files may say, and its memory. Its state: test_hybrid.py; its tensors: test_mamba2.py."""

import numpy as np
import pytest
from moeengine.kernels.threads import Team

from moeengine.errors import GGUFError
from moeengine.loader.model_info import describe, kv_bytes_per_token, recurrent_bytes
from tests.arch_models import prompt, write_arch
from tests.arch_parts import E, H
from tests.graph.test_reference import load, logits

NAME = "kimi-linear-small"
REFUSED = [
    *((key, value, key) for key in ("ssm.conv_kernel", "kda.head_dim") for value in (None, 0, -1, 1 << 31, 2.0, "x", [4, 4])),
    ("ssm.conv_kernel", 4, "ssm_conv1d_q.*128 x 1 x 4"), ("ssm.conv_kernel", 17, "conv_kernel"), ("kda.head_dim", 64, "attn_q"),
    ("attention.head_count_kv", 0, "attn_q"), ("attention.head_count_kv", 1, "attn_q|attn_kv"), ("attention.head_count_kv", [0, 0, 4, 0], "head_count_kv.*layer 2"),
    ("attention.key_length_mla", None, "value_length_mla"), ("attention.key_length", 64, "key_length"), ("attention.kv_lora_rank", 32, "key_length"),
    ("rope.dimension_count", 48, "dimension_count"), ("expert_gating_func", None, "expert_gating_func"),
    ("expert_feed_forward_length", None, "expert_feed_forward_length"), ("expert_shared_count", 2, "ffn_gate_shexp"),
]  # fmt: skip


@pytest.mark.parametrize("key, value, words", REFUSED, ids=lambda v: str(v)[:40])
def test_bad_metadata_is_refused_with_the_key(tmp_path, key, value, words):
    with pytest.raises(GGUFError, match=words):
        load(write_arch(tmp_path / "m.gguf", NAME, metadata={key: value}))


def test_whole_up_projections_are_refused(tmp_path):
    metadata = {"attention.key_length_mla": None, "attention.value_length_mla": None, "attention.head_count_kv": [0, 0, H, 0]}
    with pytest.raises(GGUFError, match="key_length_mla"):
        load(write_arch(tmp_path / "m.gguf", NAME, metadata=metadata))


def test_projections_in_one_tensor(tmp_path):
    """As in three."""
    tiny = write_arch(tmp_path / "a.gguf", NAME)
    changed = {}
    for il in (0, 1, 3):
        parts = {part: tiny.tensors[f"blk.{il}.attn_{part}.weight"] for part in "qkv"}
        changed[f"blk.{il}.attn_qkv.weight"] = (np.concatenate([array for array, _ in parts.values()]), parts["q"][1])
        changed |= {f"blk.{il}.attn_{part}.weight": None for part in "qkv"}
    other = write_arch(tmp_path / "b.gguf", NAME, tensors=changed)
    assert logits(load(other), prompt()).tobytes() == logits(load(tiny), prompt()).tobytes()


def test_memory_is_counted(tmp_path):
    model = load(write_arch(tmp_path / "m.gguf", NAME))
    n_state = 3 * (3 * 2 * H * 32 + H * 32 * 32)
    assert model.sizes.n_recurrent == n_state
    assert recurrent_bytes(model.file) == 8 * n_state  # and a copy
    assert kv_bytes_per_token(model.file) == 2 * (64 + 16)
    assert describe(model.file, 64).kv_bytes == model.kv_bytes(64) == 64 * 2 * (64 + 16) + 8 * n_state
    assert model.new_context(n_ctx=64, n_ubatch=8, team=Team(1)).memory_bytes["kv"] == model.kv_bytes(64)
    assert model.hparams.n_embd == E
