"""gpt-oss: recorded results of stock llama.cpp, and what its files may say. The rest is in the tests of all architectures."""

import functools

import numpy as np
import pytest
from moeengine.kernels.threads import Team

from moeengine.errors import GGUFError
from tests.arch_models import prompt, weights_crc
from tests.gpt_oss_models import GPT_OSS_MODELS, write_gpt_oss
from tests.graph.test_archs import RECORDS
from tests.graph.test_reference import (
    TOKENS,
    assert_same_bytes_everywhere,
    load,
    logits,
    relative_error,
)
from tests.odd_values import count_refused
from tests.reference import reference_of
from tests.tiny import write_tiny

WINDOW, PATTERN = "gpt-oss.attention.sliding_window", "gpt-oss.attention.sliding_window_pattern"


def divergence(want, got):
    """KL(want || got) of each row of logits, float64 (T,)."""
    p, q = (x.astype(np.float64) - np.log(np.exp(x.astype(np.float64)).sum(-1, keepdims=True)) for x in (want, got))
    return (np.exp(p) * (p - q)).sum(-1)


@pytest.fixture(scope="module", params=GPT_OSS_MODELS)
def recorded(request, tmp_path_factory):
    """A Tiny and stock's logits of it, float32 (T, V)."""
    tiny = write_gpt_oss(tmp_path_factory.mktemp("model") / "m.gguf", request.param)
    record = np.load(RECORDS / f"{request.param}.npz")
    assert weights_crc(tiny) == record["crc"], "other weights than were recorded; see tools/record_archs.py"
    return tiny, record["logits"]


def test_quantized_logits_equal_stock(recorded):
    """Byte for byte where this was recorded; the bounds leave room for another C library's sine and cosine."""
    tiny, want = recorded
    got = logits(load(tiny), prompt(), n_ubatch=512)
    error = ((got.astype(np.float64) - want) ** 2).mean(-1) / want.var(-1, dtype=np.float64)
    assert error.max() <= 1e-6 and np.median(error) <= 1e-10
    assert (got.argmax(-1) == want.argmax(-1)).all()
    assert divergence(want, got).max() <= 4.4e-5


def test_quantized_logits_are_the_same_bytes_everywhere(recorded):
    assert_same_bytes_everywhere(recorded[0], prompt())


def test_keys_outside_the_window_are_not_read(tmp_path):
    """All layers slide; what is left of keys before the window is NaN, in the middle of a tile too."""
    model = load(write_tiny(tmp_path / "m.gguf", "gpt-oss", n_ctx=1024, metadata={WINDOW: 40, PATTERN: 0}))
    tokens = np.random.default_rng(3).integers(0, 200, 700).astype(np.int32)
    for n_past in (100, 130, 600):
        for n_new in (1, 3, 50):
            a, b = (model.new_context(n_ctx=1024, n_ubatch=700, team=Team(2)) for _ in range(2))
            a.forward(tokens[:n_past], 0, "none")
            state = a.kv_state(n_past)
            assert state.size == 39 * model.sizes.window_elements
            for head, n_tiles, first in b.kv.heads(n_past):
                head[:] = 0x7E00
                assert first == n_past + 1 - 40
            b.set_kv_state(state, n_past)
            want, got = (np.empty((n_new, model.hparams.n_vocab), np.float32) for _ in range(2))
            a.forward(tokens[n_past : n_past + n_new], n_past, "all", want)
            b.forward(tokens[n_past : n_past + n_new], n_past, "all", got)
            assert np.isfinite(got).all() and got.tobytes() == want.tobytes()


@pytest.mark.parametrize("pattern, same_as", [
    (2, None), (0, [True] * 3), (1, [False] * 3), (3, [True, True, False]), ([True, False, True], 2),
    ([0, 1, 1, 0, 0], [False, True, True]),
])  # fmt: skip
def test_which_layers_slide(tmp_path, pattern, same_as):
    """The pattern as a period or as flags, as stock reads it. None: the default."""
    def run(metadata):
        tiny = write_tiny(tmp_path / "m.gguf", "gpt-oss", n_layer=3, metadata=metadata)
        return logits(load(tiny), TOKENS)

    got = run({PATTERN: pattern})
    assert got.tobytes() == run({PATTERN: same_as}).tobytes()
    assert got.tobytes() != run({PATTERN: [False, True, False]}).tobytes()


def test_a_window_as_long_as_the_text_is_none(tmp_path):
    wide, full = ({WINDOW: len(TOKENS)}, {PATTERN: 1})
    got = [logits(load(write_tiny(tmp_path / "m.gguf", "gpt-oss", metadata=m)), TOKENS).tobytes() for m in (wide, full)]
    assert got[0] == got[1]


REFUSED = [
    (WINDOW, None, "sliding_window.*not found"), (WINDOW, 0, "sliding_window.*at least|sliding_window.*from 1"),
    (WINDOW, -1, "sliding_window"), (WINDOW, 1 << 31, "sliding_window"), (WINDOW, 12.0, "sliding_window.*an integer"),
    (PATTERN, -1, "sliding_window_pattern"), (PATTERN, [True], "pattern.*2 flags"), (PATTERN, "x", "sliding_window_pattern"),
    (PATTERN, ["a", "b"], "sliding_window_pattern"), (PATTERN, [0.5, 1.5], "pattern.*2 flags"),
    ("gpt-oss.rope.dimension_count", 8, "dimension_count.*8.*16"),
    ("gpt-oss.attention.value_length", 32, "dimension_count"),
    ("gpt-oss.expert_feed_forward_length", None, "expert_feed_forward_length"),
    ("gpt-oss.expert_feed_forward_length", 32, "rows in number 64, expected 32"),
]  # fmt: skip


@pytest.mark.parametrize("key, value, words", REFUSED, ids=lambda v: str(v)[:40])
def test_bad_metadata_is_refused_with_the_key(tmp_path, key, value, words):
    with pytest.raises(GGUFError, match=words):
        load(write_tiny(tmp_path / "m.gguf", "gpt-oss", metadata={key: value}))


def test_the_base_of_sliding_layers_is_their_own(tmp_path):
    """The record gpt-oss-two-bases says which results are right; here, that the same base named twice changes nothing."""
    key = "gpt-oss.rope.freq_base_swa"
    plain, same, other = (
        logits(load(write_tiny(tmp_path / "m.gguf", "gpt-oss", metadata={key: base})), TOKENS) for base in (None, 10000.0, 500.0)
    )
    assert plain.tobytes() == same.tobytes() != other.tobytes()


@pytest.mark.parametrize("name", [
    "attn_sinks.weight", "attn_output.bias", "post_attention_norm.weight", "ffn_gate_inp.bias", "ffn_gate_exps.bias",
    "ffn_up_exps.bias", "ffn_down_exps.bias",
])  # fmt: skip
def test_a_missing_tensor_is_named(tmp_path, name):
    with pytest.raises(GGUFError, match=f"blk.1.{name}.*missing"):
        load(write_tiny(tmp_path / "m.gguf", "gpt-oss", tensors={f"blk.1.{name}": None}))


def test_sinks_of_another_shape_are_refused(tmp_path):
    for wrong in (np.zeros(3), np.zeros((4, 2))):
        with pytest.raises(GGUFError, match="attn_sinks"):
            load(write_tiny(tmp_path / "m.gguf", "gpt-oss", tensors={"blk.0.attn_sinks.weight": wrong}))


def test_any_value_of_its_own_keys_works_or_is_refused(tmp_path):
    keys = (WINDOW, PATTERN, "gpt-oss.rope.freq_base_swa", "gpt-oss.expert_feed_forward_length")
    write = functools.partial(write_tiny, arch="gpt-oss")
    assert count_refused(tmp_path / "a.gguf", write, keys) > 20


def test_strong_biases_and_sinks_equal_the_reference(tmp_path):
    """Values on both sides of every limit, which random weights alone do not reach."""
    rng = np.random.default_rng(4)
    base = write_tiny(tmp_path / "a.gguf", "gpt-oss", quant="F32")
    strong = {name: array * 100 for name, (array, _) in base.tensors.items() if name.endswith("_exps.bias")}
    strong |= {f"blk.{il}.attn_sinks.weight": rng.uniform(-5, 5, 4) for il in range(2)}
    tiny = write_tiny(tmp_path / "m.gguf", "gpt-oss", quant="F32", tensors=strong)
    assert relative_error(logits(load(tiny), TOKENS), reference_of(tiny)(TOKENS)) < 3e-3
