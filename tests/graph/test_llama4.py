"""Llama 4 beyond its first 8192 positions, where chunks of attention begin anew and queries become longer. Else: test_archs.py."""

import importlib
from pathlib import Path

import numpy as np
import pytest

from moeengine.errors import GGUFError, UnsupportedError
from tests.arch_models import LONG_MODELS, prompt, weights_crc, write_arch
from tests.graph.test_reference import load, logits
from tests.kernels.isas import on_every_isa

RECORDS = Path(__file__).parent / "archs"
llama4 = importlib.import_module("moeengine.graph.arch.llama4")


def test_logits_equal_stock_around_the_second_chunk(tmp_path):
    """Positions 8192 - 0 .. 127 and later; queries grow from 8191 on."""
    model = LONG_MODELS["llama4-long"]
    tiny = write_arch(tmp_path / "m.gguf", "llama4-long")
    record = np.load(RECORDS / "llama4-long.npz")
    assert weights_crc(tiny) == record["crc"]
    want = record["logits"].astype(np.float64)
    assert model.n_tokens - model.n_kept == llama4.CHUNK
    got = logits(load(tiny), prompt(model.n_tokens), n_ubatch=512, n_ctx=model.n_ctx)[-model.n_kept :]
    assert (((got - want) ** 2).mean(-1) / want.var(-1)).max() < 1e-7
    assert (got.argmax(-1) == want.argmax(-1)).all()


@pytest.fixture
def short_chunks(monkeypatch):
    monkeypatch.setattr(llama4, "CHUNK", 48)
    monkeypatch.setattr(llama4, "TEMPERATURE", (0.1, 48, 1))


@pytest.mark.parametrize("n_tokens", [192, 600])
def test_same_bytes_however_cut_and_on_every_instruction_set(tmp_path, short_chunks, n_tokens):
    """Chunks begin within tiles of the cache, within passes and beyond segments of keys."""
    tiny, tokens = write_arch(tmp_path / "m.gguf", "llama4", quant="Q8_0"), np.tile(prompt(), 4)[:n_tokens]
    whole = on_every_isa(lambda: logits(load(tiny), tokens, n_ubatch=1024, n_ctx=1024))
    for n_ubatch, n_threads in ((1, 1), (3, 2), (64, 5)):
        assert logits(load(tiny), tokens, n_ubatch=n_ubatch, n_threads=n_threads, n_ctx=1024).tobytes() == whole.tobytes()


def test_a_chunk_does_not_see_the_one_before(tmp_path, short_chunks):
    """With chunks in every layer, the second chunk's logits depend on its own tokens alone, but for where they are."""
    keys = {"attention.sliding_window_pattern": 0}
    model = load(write_arch(tmp_path / "m.gguf", "llama4", metadata=keys))
    tokens, other = prompt(96), prompt(96).copy()
    other[:48] = other[:48][::-1]
    one, two = (logits(model, t)[48:] for t in (tokens, other))
    assert one.tobytes() == two.tobytes()
    other[48] = (other[48] + 1) % 64
    assert logits(model, other)[49:].tobytes() != one[1:].tobytes()


def test_queries_grow_with_their_position(tmp_path, monkeypatch):
    model = load(write_arch(tmp_path / "m.gguf", "llama4"))
    plain = logits(model, prompt(64))
    monkeypatch.setattr(llama4, "TEMPERATURE", (0.1, 40, 1))
    tempered = logits(load(write_arch(tmp_path / "m.gguf", "llama4")), prompt(64))
    same = (plain == tempered).all(-1)
    assert same[:39].all() and not same[39:].any()


@pytest.mark.parametrize("key, value", [
    ("interleave_moe_layer_step", None), ("interleave_moe_layer_step", -1), ("expert_feed_forward_length", None),
    ("attention.sliding_window", -1), ("attention.sliding_window_pattern", [True, False]), ("rope.freq_base_swa", 0.0),
])  # fmt: skip
def test_bad_metadata_is_refused_with_the_key(tmp_path, key, value):
    with pytest.raises(GGUFError, match=key):
        load(write_arch(tmp_path / "m.gguf", "llama4", metadata={key: value}))


def test_layers_without_chunks_are_refused(tmp_path):
    with pytest.raises(UnsupportedError, match="attention.sliding_window"):
        load(write_arch(tmp_path / "m.gguf", "llama4", metadata={"attention.sliding_window": 0}))


def test_rope_factors_hold_in_contexts_of_any_length(tmp_path):
    """Layers with chunks lost them where the context is longer than the original one."""
    model = load(write_arch(tmp_path / "m.gguf", "llama4", metadata={"rope.scaling.original_context_length": 64}))
    assert logits(model, prompt()[:48], n_ctx=64).tobytes() == logits(model, prompt()[:48], n_ctx=65).tobytes()
