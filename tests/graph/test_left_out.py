"""What llama.cpp loads and does not use: scales and biases beside matrices. And files as it saves them itself."""

import re

import numpy as np
import pytest

from moeengine.errors import GGUFError
from tests.arch_models import ARCH_MODELS, DENSE_MODELS, prompt, write_arch
from tests.arch_parts import QType
from tests.graph.test_reference import load, logits
from tests.hybrid import write_hybrid

# llama.cpp loads a scale of these, once a layer
SCALED = r"blk\.\d+\.(attn_(q|k|v|qkv|gate|output)|ffn_(gate|up|down)(_exps|_shexp)?|ssm_(in|out|alpha|beta))\.weight"
# and applies all of them in these architectures; in the others all but those of feed-forward networks, and those that LEFT_OUT
# names. A string ends where a name does.
APPLIED = {"cohere2moe", "gemma4", "hy_v3", "llama", "mellum", "mistral3", "nemotron_h", "nemotron_h_moe", "qwen35", "qwen35moe", "qwen3moe"}
LEFT_OUT = {
    "afmoe": "ffn_|attn_gate", "laguna": "ffn_|attn_gate", "bailingmoe3": "", "hy_v4": "", "step35": "ffn_|attn_gate", "mimo2": "ffn_|attn_[qkv]",
    "qwen3next": "attn_(qkv|gate)|ssm_", "glm-dsa": "attn_q$", "deepseek32": "attn_q$", "deepseek2": "ffn_|attn_q$",
    "mistral4": "ffn_|attn_q$", "kimi-linear": "ffn_|attn_[qkv]|ssm_",
}  # fmt: skip


def scales(tiny, is_left_out):
    """2.0 beside every matrix that stock has a scale of and does, or does not, use."""
    arch = tiny.arch
    pattern = LEFT_OUT.get(arch, "$^" if arch in APPLIED else "ffn_")
    recurrent = {name.split(".")[1] for name in tiny.tensors if ".ssm_f_a." in name}  # Kimi delta attention, which uses none
    found = {}
    for name, (array, _) in tiny.tensors.items():
        role = name.split(".", 2)[-1].removesuffix(".weight")
        if re.fullmatch(SCALED, name):
            unused = bool(re.match(pattern, role)) or (role == "attn_output" and name.split(".")[1] in recurrent)
            if unused == is_left_out:
                found[name.replace(".weight", ".scale")] = np.full(len(array) if role.endswith("_exps") else 1, 2, np.float32)
    return found


def run(path, name, extra=None, **options):
    extra = {key: value if isinstance(value, tuple) else (value, QType.F32) for key, value in (extra or {}).items()}
    return logits(load(write_arch(path, name, tensors=extra, **options)), prompt()[:12]).tobytes()


@pytest.mark.parametrize("name", sorted(ARCH_MODELS | DENSE_MODELS))
def test_scales_are_used_where_stock_does(tmp_path, name):
    tiny = write_arch(tmp_path / "m.gguf", name)
    plain = run(tmp_path / "m.gguf", name)
    unused, used = scales(tiny, True), scales(tiny, False)
    assert run(tmp_path / "m.gguf", name, unused) == plain
    for role in {key.split(".", 2)[2] for key in used}:
        one = {key: value for key, value in used.items() if key.endswith(role) and not key.startswith(skipped(tiny))}
        assert not one or run(tmp_path / "m.gguf", name, one) != plain, role


def skipped(tiny):
    n, n_nextn = tiny.hparams["block_count"], tiny.hparams.get("nextn_predict_layers", 0)
    return tuple(f"blk.{il}." for il in range(n - n_nextn, n))


@pytest.mark.parametrize("name, tensor, used", [
    ("ernie4_5-moe", "attn_output", False), ("mimo2", "attn_q", False), ("mimo2", "attn_k", False), ("mimo2", "attn_v", False),
    ("kimi-linear", "attn_v", False), ("dots1", "attn_output", True), ("ernie4_5-moe", "attn_q", True),
])  # fmt: skip
def test_biases_are_used_where_stock_does(tmp_path, name, tensor, used):
    rows = write_arch(tmp_path / "m.gguf", name).tensors[f"blk.0.{tensor}.weight"][0].shape[0]
    bias = np.linspace(-1, 1, rows, dtype=np.float32)
    assert (run(tmp_path / "m.gguf", name, {f"blk.0.{tensor}.bias": bias}) != run(tmp_path / "m.gguf", name)) == used


@pytest.mark.parametrize("name", ["lfm2moe", "granitehybrid", "nemotron_h_moe", "kimi-linear", "jamba"])
def test_a_recurrent_layer_may_have_no_heads(tmp_path, name):
    """llama.cpp takes the heads of attention from any layer that has some."""
    counts = ARCH_MODELS[name].metadata["attention.head_count_kv"]
    n_head = ARCH_MODELS[name].metadata.get("attention.head_count", 4)
    named = [n_head if k else 0 for k in counts]
    assert run(tmp_path / "m.gguf", name, metadata={"attention.head_count": named}) == run(tmp_path / "m.gguf", name)
    for wrong in ([0] * len(counts), 0):
        with pytest.raises(GGUFError, match="head_count"):
            run(tmp_path / "m.gguf", name, metadata={"attention.head_count": wrong})


def test_axes_of_length_one_may_be_missing(tmp_path):
    """Latent attention with one head, as llama.cpp saves it."""
    one = {"attention.head_count": 1}
    tiny = write_arch(tmp_path / "m.gguf", "deepseek2-lite")
    cut = {}
    for name, (array, qtype) in tiny.tensors.items():
        role, rows = name.split(".", 2)[-1], array.shape[0] // 4
        if role in ("attn_k_b.weight", "attn_v_b.weight"):
            cut[name] = (array[:1], qtype)
        elif role == "attn_q.weight":
            cut[name] = (array[:rows], qtype)
        elif role == "attn_output.weight":
            cut[name] = (np.ascontiguousarray(array[:, : array.shape[1] // 4]), qtype)
    want = run(tmp_path / "m.gguf", "deepseek2-lite", cut, metadata=one)
    flat = {name: (array[0] if array.ndim == 3 else array, qtype) for name, (array, qtype) in cut.items()}
    assert run(tmp_path / "m.gguf", "deepseek2-lite", flat, metadata=one) == want


@pytest.mark.parametrize("name", ["granitemoe-shared", "gpt-oss", "deepseek4"])
def test_a_single_expert_may_have_no_axis(tmp_path, name):
    tiny = write_arch(tmp_path / "m.gguf", name)
    cut = {}
    for key, (array, qtype) in tiny.tensors.items():
        if "_exps" in key or "ffn_gate_inp." in key or "exp_probs_b" in key:
            cut[key] = (array[:1], qtype)
        elif "tid2eid" in key:
            cut[key] = (np.zeros_like(array), qtype)
    one = {"expert_count": 1, "expert_used_count": 1}
    flat = {key: (array[0] if array.ndim > 1 and len(array) == 1 else array, qtype) for key, (array, qtype) in cut.items()}
    assert flat["blk.0.ffn_gate_inp.weight"][0].ndim == 1
    assert run(tmp_path / "m.gguf", name, flat, metadata=one) == run(tmp_path / "m.gguf", name, cut, metadata=one)


def test_groups_of_an_output_may_be_an_axis(tmp_path):
    """deepseek4, as llama.cpp saves it and its converter does not."""
    tiny = write_arch(tmp_path / "m.gguf", "deepseek4")
    n = tiny.hparams["attention.output_group_count"]
    names = [name for name in tiny.tensors if name.endswith("attn_output_a.weight")]
    by_group = {name: tiny.tensors[name][0].reshape(n, -1, tiny.tensors[name][0].shape[1]) for name in names}
    assert names and run(tmp_path / "m.gguf", "deepseek4", by_group) == run(tmp_path / "m.gguf", "deepseek4")


def test_granitemoe_without_experts_is_dense(tmp_path):
    names = ("expert_count", "expert_used_count")
    tiny = write_arch(tmp_path / "m.gguf", "granitemoe")
    changed = {name: None for name in tiny.tensors if "_exps" in name or "ffn_gate_inp" in name}
    rng = np.random.default_rng(2)
    for il in range(2):
        for part, shape in (("gate", (64, 64)), ("up", (64, 64)), ("down", (64, 64))):
            changed[f"blk.{il}.ffn_{part}.weight"] = (rng.standard_normal(shape).astype(np.float32) / 8, QType.F32)
    model = load(write_arch(tmp_path / "m.gguf", "granitemoe", tensors=changed, metadata=dict.fromkeys(names)))
    got = logits(model, prompt()[:12])
    assert np.isfinite(got).all() and not model.moe_blocks


def test_gated_delta_nets_of_qwen3next_have_no_scales(tmp_path):
    plain = logits(load(write_hybrid(tmp_path / "m.gguf", "qwen3next")), prompt()[:12])
    scale = {"blk.0.ssm_out.scale": np.full(1, 2.0)}
    assert logits(load(write_hybrid(tmp_path / "m.gguf", "qwen3next", tensors=scale)), prompt()[:12]).tobytes() == plain.tobytes()


def test_who_heeds_that_nothing_is_rotated(tmp_path):
    """granite does, granitemoe not, as in llama.cpp."""
    for name, heeds in (("granite", True), ("granitemoe", False)):
        rotated, not_rotated = (
            logits(load(write_arch(tmp_path / "m.gguf", name, metadata={"rope.scaling.finetuned": flag})), prompt()[:20]).tobytes()
            for flag in (True, False)
        )
        assert (rotated != not_rotated) == heeds
