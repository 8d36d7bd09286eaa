"""Whole models against the NumPy reference, and the same bytes however the work is cut."""

import numpy as np
import pytest

from moeengine import graph
from moeengine.errors import ConfigError, ContextOverflowError, GGUFError, NumericError
from moeengine.kernels.threads import Team
from moeengine.kernels.testing import F16_POSITIONS
from moeengine.loader.model_file import ModelFile
from tests.kernels.isas import on_every_isa
from tests.reference import reference_of
from tests.tiny import write_tiny

TOKENS = np.array([3, 14, 15, 92, 65, 35, 89, 79, 32, 38, 46, 26, 43, 38, 32, 79], np.int32)


def logits(model, tokens, *, n_ubatch=64, n_threads=2, n_ctx=None):
    """float32 (T, V) of a fresh timeline."""
    ctx = model.new_context(n_ctx=n_ctx or len(tokens), n_ubatch=n_ubatch, team=Team(n_threads))
    ctx.alone_below = 0  # tiny models would never wake the team
    out = np.empty((len(tokens), model.hparams.n_vocab), np.float32)
    for i in range(0, len(tokens), n_ubatch):
        part = np.asarray(tokens[i : i + n_ubatch], np.int32)
        ctx.forward(part, i, "all", out[i : i + len(part)])
    return out


def assert_same_bytes_everywhere(tiny, tokens):
    """Logits of the tokens, for cuts of the prompt, numbers of threads and every instruction set."""
    model = load(tiny)
    want = logits(model, tokens, n_ubatch=512).tobytes()
    for n_ubatch, n_threads in ((1, 2), (37, 3), (150, 1)):
        assert logits(model, tokens, n_ubatch=n_ubatch, n_threads=n_threads).tobytes() == want
    assert on_every_isa(lambda: logits(load(tiny), tokens, n_ubatch=64)).tobytes() == want


def load(tiny, **options):
    return graph.load_model(ModelFile.open(tiny.path), **options)


def relative_error(got, want):
    return np.abs(got - want).max() / np.abs(want).max()


ARCHS = [
    ("llama", {}),
    ("llama", {"n_expert": 8}),
    ("llama", {"n_head": 4, "n_head_kv": 1, "head_dim": 24}),
    ("qwen2", {}),
    ("qwen3", {"tied": True}),
    ("qwen2moe", {}),
    ("qwen3moe", {"n_expert": 6, "n_expert_used": 3}),
    ("qwen3moe", {"n_expert": [4, 9], "n_expert_used": 4}),
    ("qwen3moe", {"fused_gate_up": True}),
    ("olmoe", {"n_expert_used": 4}),
    ("gpt-oss", {"n_expert_used": 3}),
    ("gpt-oss", {"fused_gate_up": True, "quants": {"_exps": "MXFP4"}}),
]


@pytest.mark.parametrize("arch, options", ARCHS, ids=lambda v: v if isinstance(v, str) else "-".join(map(str, v)))
def test_float_models_equal_the_reference(tmp_path, arch, options):
    tiny = write_tiny(tmp_path / "m.gguf", arch, **options | {"quant": "F32", "quants": None})
    got = logits(load(tiny), TOKENS)
    assert relative_error(got, reference_of(tiny)(TOKENS)) < 3e-3  # attention of short texts rounds to F16, as stock


@pytest.mark.parametrize("arch", ["llama", "qwen3moe", "qwen2moe"])
@pytest.mark.parametrize("quant", ["Q8_0", "Q4_K", "Q6_K"])
def test_quantized_models_are_close_to_the_reference(tmp_path, arch, quant):
    tiny = write_tiny(tmp_path / "m.gguf", arch, quant=quant)
    got, want = logits(load(tiny), TOKENS), reference_of(tiny)(TOKENS)
    assert np.median(np.abs(got - want).max(-1)) / np.abs(want).max() < 0.1  # a token may choose another expert


@pytest.mark.parametrize("arch, options", ARCHS, ids=lambda v: v if isinstance(v, str) else "-".join(map(str, v)))
def test_same_bytes_however_cut(tmp_path, arch, options):
    tiny = write_tiny(tmp_path / "m.gguf", arch, **options)
    model = load(tiny)
    want = logits(model, TOKENS, n_threads=1)
    for n_ubatch in (1, 3, 7, 16):
        for n_threads in (1, 2, 5):
            assert logits(model, TOKENS, n_ubatch=n_ubatch, n_threads=n_threads).tobytes() == want.tobytes()


LONG = [("qwen3moe", None), ("gpt-oss", 40), ("gpt-oss", 128), ("gpt-oss", 520)]


def write_long(path, arch, window, **options):
    metadata = {"gpt-oss.attention.sliding_window": window} if window else {}
    return write_tiny(path, arch, n_layer=2 if window else 1, n_ctx=1024, metadata=metadata, **options)


@pytest.mark.parametrize("arch, window", LONG)
@pytest.mark.parametrize("n_tokens", [127, 129, 513, 700])
def test_same_bytes_over_the_borders_of_attention(tmp_path, n_tokens, arch, window):
    """Positions 128 (F16 sums) and 512 (segments), one by one against whole chunks."""
    model = load(write_long(tmp_path / "m.gguf", arch, window))
    tokens = np.random.default_rng(1).integers(0, 200, n_tokens).astype(np.int32)
    want = logits(model, tokens, n_ubatch=1024)
    for n_ubatch in (100, 3, 1):
        assert logits(model, tokens, n_ubatch=n_ubatch).tobytes() == want.tobytes()


@pytest.mark.parametrize("arch, window", LONG)
def test_long_texts_equal_the_reference(tmp_path, arch, window):
    tiny = write_long(tmp_path / "m.gguf", arch, window, quant="F32")
    tokens = np.random.default_rng(1).integers(0, 200, 600).astype(np.int32)
    got, want = logits(load(tiny), tokens, n_ubatch=1024), reference_of(tiny)(tokens)
    # a second layer sees through its keys what the F16 sums of the first layer made of early positions
    assert relative_error(got[F16_POSITIONS:], want[F16_POSITIONS:]) < (1e-2 if window else 1e-4)
    assert relative_error(got[:F16_POSITIONS], want[:F16_POSITIONS]) < 1e-2


@pytest.mark.parametrize("metadata, options", [
    ({"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}, {"scale": 0.25}),
    ({"llama.rope.freq_base": 500000.0}, {}),
    ({"llama.rope.dimension_count": 8}, {}),
])
def test_rope_scaling(tmp_path, metadata, options):
    tiny = write_tiny(tmp_path / "m.gguf", "llama", quant="F32", metadata=metadata)
    assert relative_error(logits(load(tiny), TOKENS), reference_of(tiny, rope_options=options)(TOKENS)) < 3e-3


def test_yarn(tmp_path):
    """YaRN by its paper: ramp between 32 and 1 turns within the original context, magnitude 0.1 ln s + 1."""
    n_rot, base, n_orig, factor = 16, 10000.0, 64, 4.0
    tiny = write_tiny(tmp_path / "m.gguf", "qwen2", quant="F32", metadata={
        "qwen2.rope.scaling.type": "yarn", "qwen2.rope.scaling.factor": factor,
        "qwen2.rope.scaling.original_context_length": n_orig, "qwen2.rope.freq_base": base,
    })
    dims = [n_rot * np.log(n_orig / (turns * 2 * np.pi)) / (2 * np.log(base)) for turns in (32, 1)]
    low, high = max(0, np.floor(dims[0])), min(n_rot - 1, np.ceil(dims[1]))
    want = reference_of(tiny, rope_options={"scale": 1 / factor, "yarn": (low, high, 1 + 0.1 * np.log(factor))})(TOKENS)
    assert relative_error(logits(load(tiny), TOKENS), want) < 3e-3


def test_frequency_factors(tmp_path):
    factors = np.linspace(1, 8, 8)
    tiny = write_tiny(tmp_path / "m.gguf", "llama", quant="F32", tensors={"rope_freqs.weight": factors})
    assert relative_error(logits(load(tiny), TOKENS), reference_of(tiny)(TOKENS)) < 3e-3


def test_biases_and_scales(tmp_path):
    rng = np.random.default_rng(5)
    extra = {}
    for il in range(2):
        extra[f"blk.{il}.attn_q.scale"] = np.array([1.5])
        extra[f"blk.{il}.attn_output.scale"] = np.array([0.7])
        extra[f"blk.{il}.attn_output.bias"] = 0.1 * rng.standard_normal(64)
        for part in ("gate", "up", "down"):
            extra[f"blk.{il}.ffn_{part}_exps.scale"] = rng.uniform(0.5, 1.5, 8)
    tiny = write_tiny(tmp_path / "m.gguf", "qwen3moe", quant="F32", tensors=extra)
    got = logits(load(tiny), TOKENS)
    assert relative_error(got, reference_of(tiny)(TOKENS)) < 3e-3
    plain = write_tiny(tmp_path / "p.gguf", "qwen3moe", quant="F32")
    assert relative_error(got, logits(load(plain), TOKENS)) > 1e-2  # they did something


def test_kv_state_moves_a_timeline(tmp_path):
    model = load(write_tiny(tmp_path / "m.gguf", "qwen3moe", n_ctx=256))
    tokens = np.random.default_rng(2).integers(0, 200, 150).astype(np.int32)
    want = logits(model, tokens, n_ubatch=150)
    a, b = (model.new_context(n_ctx=256, n_ubatch=150, team=Team(2)) for _ in range(2))
    a.forward(tokens[:137], 0, "none")
    b.set_kv_state(a.kv_state(137), 137)
    got = np.empty((13, model.hparams.n_vocab), np.float32)
    b.forward(tokens[137:], 137, "all", got)
    assert got.tobytes() == want[137:].tobytes()
    with pytest.raises(ConfigError):
        b.set_kv_state(a.kv_state(137), 136)


def test_contexts_of_a_team_share_scratch_and_nothing_else(tmp_path):
    """Chunks of three timelines in turn, the last of which needs more scratch than there was."""
    model = load(write_tiny(tmp_path / "m.gguf", "qwen3moe", n_ctx=256))
    team, rng = Team(2), np.random.default_rng(5)
    texts = [rng.integers(0, 200, 150).astype(np.int32) for _ in range(3)]
    contexts = [model.new_context(n_ctx=n_ctx, n_ubatch=50, team=team) for n_ctx in (256, 150, 256)]
    contexts[2] = model.new_context(n_ctx=256, n_ubatch=90, team=team)
    got = [np.empty((150, model.hparams.n_vocab), np.float32) for _ in texts]
    for at in range(0, 150, 30):
        for context, tokens, out in zip(contexts, texts, got):
            context.forward(tokens[at : at + 30], at, "all", out[at : at + 30])
    for tokens, out in zip(texts, got):
        assert out.tobytes() == logits(model, tokens, n_ubatch=150).tobytes()


def test_trace_of_routing(tmp_path):
    model = load(write_tiny(tmp_path / "m.gguf", "qwen3moe", n_expert=8, n_expert_used=3))
    ctx = model.new_context(n_ctx=32, n_ubatch=16, team=Team(1))
    ctx.record_routing = True
    ctx.forward(TOKENS, 0, "none")
    assert ctx.trace.shape == (2, 16, 3)
    assert ctx.trace.min() >= 0 and ctx.trace.max() < 8
    assert all(len(set(row)) == 3 for row in ctx.trace.reshape(-1, 3).tolist())


def test_n_expert_used(tmp_path):
    tiny = write_tiny(tmp_path / "m.gguf", "qwen3moe", quant="F32", n_expert=8, n_expert_used=2)
    for used in (1, 5, 8):
        want = reference_of(tiny, hparams={"n_expert_used": used})(TOKENS)
        assert relative_error(logits(load(tiny, n_expert_used=used), TOKENS), want) < 3e-3
    for used in (0, 9, -1):
        with pytest.raises(ConfigError, match="1 to 8"):
            load(tiny, n_expert_used=used)
    dense = write_tiny(tmp_path / "dense.gguf", "llama")
    with pytest.raises(ConfigError, match="no experts"):
        load(dense, n_expert_used=3)


def test_refusals_of_forward(tmp_path):
    model = load(write_tiny(tmp_path / "m.gguf", "llama"))
    ctx = model.new_context(n_ctx=8, n_ubatch=4, team=Team(1))
    out = np.empty((1, model.hparams.n_vocab), np.float32)
    for tokens, n_past, error in [([], 0, ConfigError), ([1] * 5, 0, ConfigError), ([1], 8, ContextOverflowError),
                                  ([1], -1, ConfigError), ([-1], 0, ConfigError), ([10**6], 0, ConfigError)]:
        with pytest.raises(error):
            ctx.forward(np.array(tokens, np.int32), n_past, "last", out)
    with pytest.raises(ConfigError):
        ctx.forward(TOKENS[:2], 0, "all", out)
    with pytest.raises(ConfigError):
        ctx.forward(TOKENS[:2], 0, "some", out)


@pytest.mark.parametrize("name", ["blk.1.ffn_gate_inp.weight", "blk.1.ffn_down_exps.weight"])
def test_nan_is_reported_with_its_layer(tmp_path, name):
    good = write_tiny(tmp_path / "m.gguf", "qwen3moe", quant="F32")
    array = good.weight(name).copy()
    array[...] = np.nan
    bad = write_tiny(tmp_path / "b.gguf", "qwen3moe", quant="F32", tensors={name: array})
    with pytest.raises(NumericError, match="layer 1"):
        logits(load(bad), TOKENS)


def test_missing_tensors_are_named(tmp_path):
    for name in ("blk.1.attn_q.weight", "blk.0.ffn_gate_inp.weight", "output_norm.weight", "token_embd.weight"):
        tiny = write_tiny(tmp_path / "m.gguf", "qwen3moe", tensors={name: None})
        with pytest.raises(GGUFError, match=name.replace(".", r"\.") + ".*missing"):
            load(tiny)


def test_wrong_shapes_are_named(tmp_path):
    tiny = write_tiny(tmp_path / "m.gguf", "qwen3", tensors={"blk.0.attn_k.weight": np.zeros((16, 64))})
    with pytest.raises(GGUFError, match="blk.0.attn_k.weight.*16 x 64.*expected 32 x 64"):
        load(tiny)


def test_next_token_prediction_layers_are_skipped(tmp_path):
    plain = write_tiny(tmp_path / "p.gguf", "qwen3moe", n_layer=2)
    key = "qwen3moe.block_count"
    extra = {"blk.2.nextn.eh_proj.weight": np.zeros((4, 4))}
    for name, tensors in (("present.gguf", extra), ("absent.gguf", {})):
        tiny = write_tiny(tmp_path / name, "qwen3moe", n_layer=2, tensors=tensors,
                          metadata={key: 3, "qwen3moe.nextn_predict_layers": 1})
        assert logits(load(tiny), TOKENS).tobytes() == logits(load(plain), TOKENS).tobytes()
