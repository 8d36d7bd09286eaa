"""Grok, DBRX, Arctic and Cohere 2 MoE: what is peculiar to them and not seen in logits alone. Logits: test_archs.py."""

import numpy as np
import pytest

from moeengine.errors import GGUFError
from tests.arch_models import prompt, write_arch
from tests.graph.test_reference import load, logits

RMS, LAYER = "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"


def made(path, name, n_tokens=48, **keys):
    return logits(load(write_arch(path / "m.gguf", name, metadata=keys)), prompt(n_tokens)).tobytes()


@pytest.mark.parametrize("eps", [0.0, None])
def test_cohere_norms_take_the_mean_off_where_there_is_no_eps_of_rms(tmp_path, eps):
    assert made(tmp_path, "cohere2moe", **{RMS: eps}) != made(tmp_path, "cohere2moe", **{RMS: 1e-5})
    assert made(tmp_path, "cohere2moe", **{RMS: 0.0}) == made(tmp_path, "cohere2moe", **{RMS: None})


def test_the_mean_of_the_stream_is_of_no_account_to_layer_norm(tmp_path):
    """The same number on every column of the embedding changes nothing but roundings."""
    tiny = write_arch(tmp_path / "m.gguf", "dbrx")
    want = logits(load(tiny), prompt(16))
    array, qtype = tiny.tensors["token_embd.weight"]
    moved = write_arch(tmp_path / "n.gguf", "dbrx", tensors={"token_embd.weight": (array + np.float32(0.5), qtype)})
    assert np.abs(logits(load(moved), prompt(16)) - want).max() < 1e-3 * np.abs(want).max()


def test_bounds_of_queries_keys_and_values(tmp_path):
    none, wide, tight = (made(tmp_path, "dbrx", **{"attention.clamp_kqv": bound}) for bound in (0.0, 1e6, 0.5))
    assert none == wide != tight


def test_router_logits_are_not_capped_whatever_grok_files_say(tmp_path):
    assert made(tmp_path, "grok", **{"router_logit_softcapping": 1.0}) == made(tmp_path, "grok")


@pytest.mark.parametrize("name, key, value", [
    ("grok", "attn_logit_softcapping", 0.0), ("grok", "attn_logit_softcapping", -1.0), ("grok", "embedding_scale", float("nan")),
    ("grok", "final_logit_softcapping", -1.0), ("dbrx", "attention.clamp_kqv", None), ("dbrx", "attention.clamp_kqv", -1.0),
    ("cohere2moe", "logit_scale", None), ("cohere2moe", LAYER, 2.0), ("cohere2moe", "attention.sliding_window", 0),
])  # fmt: skip
def test_bad_metadata_is_refused_with_the_key(tmp_path, name, key, value):
    with pytest.raises(GGUFError, match=key):
        load(write_arch(tmp_path / "m.gguf", name, metadata={key: value}))


@pytest.mark.parametrize("name, tensor", [
    ("grok", "attn_output_norm.weight"), ("grok", "layer_output_norm.weight"), ("grok-dense", "ffn_gate.weight"),
    ("arctic", "ffn_norm_exps.weight"), ("arctic", "ffn_up.weight"), ("dbrx", "attn_output_norm.weight"),
])  # fmt: skip
def test_a_missing_tensor_is_named(tmp_path, name, tensor):
    with pytest.raises(GGUFError, match="blk.0.(post_ffw_norm.weight|" + tensor + ")"):
        load(write_arch(tmp_path / "m.gguf", name, tensors={f"blk.0.{tensor}": None}))
