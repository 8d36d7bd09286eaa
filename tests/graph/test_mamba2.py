"""Mamba-2 layers: what their files may say, and their memory. Their state: test_hybrid.py."""

import functools

import numpy as np
import pytest
from moeengine.kernels.threads import Team

from moeengine import Engine
from moeengine.cli import main
from moeengine.errors import GGUFError, MoeEngineError, NumericError
from moeengine.loader.expert_map import map_of
from moeengine.loader.model_file import ModelFile
from moeengine.loader.model_info import describe, kv_bytes_per_token, recurrent_bytes
from tests.arch_models import ARCH_MODELS, prompt, write_arch
from tests.arch_parts import D, E, F, K, QType, X
from tests.graph.test_reference import load, logits
from tests.odd_values import compute_not_finite, count_refused

NAMES = [name for name, model in ARCH_MODELS.items() if any(row[0] in ("ssm_in.weight", "ssm_f_a.weight") for layer in model.layers for row in layer)]
KEYS = ["ssm.conv_kernel", "ssm.inner_size", "ssm.state_size", "ssm.time_step_rank", "ssm.group_count"]
REFUSED = [
    *((key, value, key) for key in KEYS for value in (None, 0, -1, 1 << 31, 2.0, "x", [4, 4])),
    ("ssm.group_count", 3, "group_count.*divisor"), ("ssm.time_step_rank", 3, "time_step_rank.*divisor"),
    ("ssm.group_count", 4, "ssm_in"), ("ssm.state_size", 64, "ssm_in"), ("ssm.inner_size", 64, "ssm_in"),
    ("ssm.conv_kernel", 3, "ssm_conv1d.*384 x 4.*384 x 3"), ("ssm.conv_kernel", 17, "conv_kernel"),
    ("attention.head_count_kv", 0, "blk.1.ssm_in|blk.1.ssm_out"), ("attention.head_count_kv", 2, "blk.0.attn_q"),
    ("attention.head_count_kv", [2, 2, 0, 0], "blk.0.attn_q"), ("attention.head_count_kv", [0, 0], "head_count_kv.*4 elements"),
    ("attention.head_count_kv", [0, 3, 0, 0], "head_count_kv.*3, expected a divisor.*layer 1"), ("rope.scaling.finetuned", 1, "finetuned"),
]  # fmt: skip


@pytest.mark.parametrize("key, value, words", REFUSED, ids=lambda v: str(v)[:40])
def test_bad_metadata_is_refused_with_the_key(tmp_path, key, value, words):
    with pytest.raises(GGUFError, match=words):
        load(write_arch(tmp_path / "m.gguf", "granitehybrid", metadata={key: value}))


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_or_odd_tensor_is_named(tmp_path, name):
    tiny, model = write_arch(tmp_path / "a.gguf", name), ARCH_MODELS[name]
    odd = [(np.zeros(shape, np.float32), QType.F32) for shape in ((3, 5), (7,), (2, 3, 2))]
    n_layer = len(model.layers) - model.metadata.get("nextn_predict_layers", 0)
    for tensor in tiny.tensors:
        if not tensor.startswith(tuple(f"blk.{il}." for il in range(n_layer))):
            continue
        for wrong in odd if tensor.endswith(".bias") and "ssm_dt" not in tensor else (None, *odd):
            with pytest.raises(GGUFError, match=tensor.removesuffix(".weight").split(".")[2]):
                load(write_arch(tmp_path / "m.gguf", name, tensors={tensor: wrong}))


def test_any_value_of_their_own_keys_works_or_is_refused(tmp_path):
    keys = (*KEYS, "attention.head_count_kv", "rope.scaling.finetuned", "residual_scale", "logit_scale", "embedding_scale")
    write = functools.partial(write_arch, name="granitehybrid")
    assert count_refused(tmp_path / "a.gguf", write, keys, also=NumericError) > 60


def test_values_that_are_not_finite_do_not_crash(tmp_path):
    names = ("ssm_a", "ssm_d", "ssm_dt.bias", "ssm_conv1d.weight", "ssm_conv1d.bias", "ssm_norm.weight")
    write = functools.partial(write_arch, name="granitehybrid")
    compute_not_finite(tmp_path / "m.gguf", write, write(tmp_path / "a.gguf"), [f"blk.0.{name}" for name in names])


def test_without_a_bias_of_the_convolution(tmp_path):
    """As with one of zeros."""
    tiny = write_arch(tmp_path / "a.gguf", "granitehybrid")
    biases = {name: value for name, value in tiny.tensors.items() if name.endswith("conv1d.bias")}
    got = []
    for change in (lambda array, qtype: None, lambda array, qtype: (np.zeros_like(array), qtype)):
        tensors = {name: change(*value) for name, value in biases.items()}
        got.append(logits(load(write_arch(tmp_path / "m.gguf", "granitehybrid", tensors=tensors)), prompt()).tobytes())
    assert len(biases) == 3 and got[0] == got[1]


def test_experts_without_a_gate(tmp_path, capsys):
    """They are up and down for everything that counts bytes, and nothing stands for the gate."""
    tiny = write_arch(tmp_path / "m.gguf", "nemotron_h_moe", quant="Q8_0")
    up_down = 2 * F * E // 32 * 34
    assert main(["info", str(tiny.path)]) == 0
    assert "(up and down)" in capsys.readouterr().out
    with ModelFile.open(tiny.path) as file:
        info, ranges = describe(file).experts, map_of(file).layers
    assert info.expert_bytes_min == info.expert_bytes_max == up_down and info.token_bytes == 3 * 3 * up_down
    assert [len(layer) for layer in ranges[:6]] == [0, X, 0, X, 0, X]
    assert (ranges[1][:, 0, 1] == 0).all() and (ranges[1][:, 1:, 1] == up_down // 2).all()
    for settings in (dict(moe_mode="mmap"), dict(moe_mode="stream", cache_mb=0, force_cache=True), dict(moe_mode="prefetch"),
                     dict(moe_mode="sweep-prefill", sweep_method="advice", sweep_min_tokens=2)):  # fmt: skip
        with Engine(tiny.path, n_ctx=64, n_threads=1, **settings) as engine:
            engine.session().eval([1])
            nodes = engine._runtime.model.nodes()
            assert [node["part"] for node in nodes] == ["up", "down"] * 3
            if settings["moe_mode"] == "stream":
                assert [node["bytes_read"] for node in nodes] == [3 * up_down // 2] * 6


@pytest.mark.parametrize("name, words", [("nemotron_h_moe", "blk.1.ffn_gate_exps.*without a gate"), ("granitehybrid", "blk.1.ffn_gate_exps")])
def test_a_gate_too_many_or_too_few(tmp_path, name, words):
    tensor = None if name == "granitehybrid" else (np.zeros((X, F, E), np.float32), QType.F32)
    with pytest.raises(GGUFError, match=words):
        load(write_arch(tmp_path / "m.gguf", name, tensors={"blk.1.ffn_gate_exps.weight": tensor}))


@pytest.mark.parametrize("key, value, words", [
    ("moe_latent_size", 32, "moe_latent_size"), ("feed_forward_length", F, "blk.0.ffn_gate_inp"), ("expert_count", 0, "blk.1.ffn_up.weight"),
    ("feed_forward_length", [0, F, F], "feed_forward_length.*6 elements"), ("attention.head_count_kv", K, "blk.0.attn_q"),
    ("attention.layer_norm_epsilon", 2.0, "rms_epsilon"), ("attention.layer_norm_epsilon", None, "rms_epsilon"),
])  # fmt: skip
def test_metadata_of_nemotron(tmp_path, key, value, words):
    metadata = {key: value}
    if "epsilon" in key:  # the other key stands in for one that is missing, and is of no interest beside it
        metadata["attention.layer_norm_rms_epsilon"] = 3.0 if value else None
    with pytest.raises(MoeEngineError, match=words):
        load(write_arch(tmp_path / "m.gguf", "nemotron_h_moe", metadata=metadata))


def test_memory_is_counted(tmp_path):
    model = load(write_arch(tmp_path / "m.gguf", "granitehybrid"))
    n_state = 3 * (3 * (128 + 2 * 128) + 128 * 128)
    assert model.sizes.n_recurrent == n_state
    assert recurrent_bytes(model.file) == 8 * n_state  # and a copy
    assert kv_bytes_per_token(model.file) == 2 * 2 * K * D
    assert describe(model.file, 64).kv_bytes == model.kv_bytes(64) == 64 * 2 * 2 * K * D + 8 * n_state
    assert model.new_context(n_ctx=64, n_ubatch=8, team=Team(1)).memory_bytes["kv"] == model.kv_bytes(64)
