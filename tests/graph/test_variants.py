"""One model in several guises, and one context after other work: the same bytes."""

import numpy as np
import pytest

from moeengine import Engine
from moeengine.kernels.threads import Team
from tests.graph.test_reference import TOKENS, load, logits
from tests.reference import reference_of
from tests.tiny import write_tiny


def test_a_tied_head_is_the_embedding(tmp_path):  # B051
    tied = write_tiny(tmp_path / "tied.gguf", "qwen3moe", tied=True)
    twice = write_tiny(tmp_path / "twice.gguf", "qwen3moe", tied=True, tensors={"output.weight": tied.tensors["token_embd.weight"]})  # fmt: skip
    assert logits(load(tied), TOKENS).tobytes() == logits(load(twice), TOKENS).tobytes()


@pytest.mark.parametrize("arch", ["qwen3moe", "qwen2moe", "gpt-oss"])  # without and with biases
def test_fused_queries_keys_and_values(tmp_path, arch):  # B038
    apart = write_tiny(tmp_path / "apart.gguf", arch)
    tensors = {}
    for il in range(2):
        for end in ("weight", "bias")[: 1 + (arch != "qwen3moe")]:
            names = [f"blk.{il}.attn_{part}.{end}" for part in "qkv"]
            arrays, qtype = [apart.tensors[n][0] for n in names], apart.tensors[names[0]][1]
            tensors |= dict.fromkeys(names) | {f"blk.{il}.attn_qkv.{end}": (np.concatenate(arrays), qtype)}
    fused = write_tiny(tmp_path / "fused.gguf", arch, tensors=tensors)
    assert logits(load(fused), TOKENS).tobytes() == logits(load(apart), TOKENS).tobytes()


def test_a_whole_layer_of_next_token_prediction_is_skipped(tmp_path):  # B054
    key = {"qwen3moe.nextn_predict_layers": 1}
    extra = {"blk.2.nextn.eh_proj.weight": np.zeros((64, 128))}
    whole = write_tiny(tmp_path / "whole.gguf", n_layer=3, metadata=key, tensors=extra)
    trunk = {n: t for n, t in whole.tensors.items() if not n.startswith("blk.2.")}
    alone = write_tiny(tmp_path / "alone.gguf", n_layer=2, tensors=trunk)
    assert logits(load(whole), TOKENS).tobytes() == logits(load(alone), TOKENS).tobytes()


@pytest.mark.parametrize("settings", [{"moe_mode": "mmap"}, {"moe_mode": "stream", "cache_mb": 0}], ids=lambda s: s["moe_mode"])
def test_tensors_at_odd_offsets(tmp_path, settings):  # B100
    options = dict(arch="qwen2moe", quants={"_exps": "Q4_K", "shexp": "F16"}, n_embd=256, n_ff_exp=256)
    odd = write_tiny(tmp_path / "odd.gguf", alignment=1, metadata={"x": "of odd length"}, **options)
    even = write_tiny(tmp_path / "even.gguf", **options)
    got = []
    for path in (odd.path, even.path):
        with Engine(path, n_ctx=64, n_threads=2, **settings) as engine:
            got.append(engine.logits(TOKENS))
            if path == odd.path:
                assert all(info.offset % 2 for info in engine._runtime.model_file.tensors.values())
    assert got[0].tobytes() == got[1].tobytes()


@pytest.mark.parametrize("arch, options", [
    ("llama", {}), ("llama", {"n_expert": 8}), ("qwen2moe", {}), ("qwen3moe", {"quant": "Q4_K"}), ("olmoe", {}),
    ("gpt-oss", {}),
], ids=str)  # fmt: skip
def test_what_a_pass_leaves_in_its_buffers_changes_nothing(tmp_path, arch, options):  # B079
    """A longer pass of other tokens, then one whose embedding is NaN, which reaches every buffer of a dense model."""
    plain = write_tiny(tmp_path / "plain.gguf", arch, **options)
    embedding = plain.weight("token_embd.weight").copy()
    embedding[200] = np.nan
    tiny = write_tiny(tmp_path / "m.gguf", arch, **options, tensors={"token_embd.weight": embedding})
    model = load(tiny)
    want = logits(model, TOKENS, n_ctx=64)
    ctx = model.new_context(n_ctx=64, n_ubatch=64, team=Team(2))
    ctx.alone_below = 0
    out = np.empty((64, model.hparams.n_vocab), np.float32)
    ctx.forward(np.arange(64, dtype=np.int32), 0, "all", out)
    try:
        ctx.forward(np.full(64, 200, np.int32), 0, "all", out)
        assert np.isnan(out).all()
    except ArithmeticError:
        assert arch != "llama" or options
    got = np.empty_like(want)
    ctx.forward(TOKENS, 0, "all", got)
    assert got.tobytes() == want.tobytes()


TYPES = ["Q8_0", "Q4_0", "Q4_K", "Q6_K", "IQ2_XXS", "IQ4_NL", "MXFP4", "F16", "BF16"]


@pytest.mark.parametrize("gate, up", [*zip(TYPES, TYPES[1:] + TYPES[:1]), *zip(TYPES, TYPES[4:] + TYPES[:4])])
def test_gate_up_and_down_of_any_types(tmp_path, gate, up):  # B069, B074
    for down in TYPES[::2]:
        quants = {"ffn_gate_exps": gate, "ffn_up_exps": up, "ffn_down_exps": down}
        tiny = write_tiny(tmp_path / "m.gguf", n_layer=1, n_expert=4, quant="F32", quants=quants)
        got, want = logits(load(tiny), TOKENS), reference_of(tiny)(TOKENS)
        assert np.median(np.abs(got - want).max(-1)) / np.abs(want).max() < 0.05, down
