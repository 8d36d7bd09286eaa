"""The model that ships: it is what its card says, and stock's greedy text for it is recorded beside this file."""

import json
from pathlib import Path

import gguf
import numpy as np
import pytest

from moeengine.engine import Engine
from moeengine.loader.model_file import ModelFile
from moeengine.models import default_model_path
from moeengine.tokenizer import Tokenizer

QType = gguf.GGMLQuantizationType
GREEDY = json.loads(Path(__file__).with_name("greedy.json").read_text())


@pytest.fixture(scope="module")
def model():
    with ModelFile.open(default_model_path()) as opened:
        yield opened


def test_it_is_small_and_of_the_promised_shape(model):
    assert model.path.stat().st_size <= 10e6
    assert model.architecture == "qwen3moe"
    assert model.get_int("qwen3moe.embedding_length") % 256 == 0
    assert model.get_int("qwen3moe.block_count") >= 4
    assert model.get_int("qwen3moe.expert_count") >= 16
    assert model.get_int("qwen3moe.expert_used_count") >= 2
    assert 1000 <= len(model.metadata["tokenizer.ggml.tokens"]) <= 4000
    assert "<|im_start|>" in model.get_str("tokenizer.chat_template")


def test_iq2_xxs_and_q4_k_experts_are_both_in_use(model):
    types = {info.qtype for name, info in model.tensors.items() if "_exps" in name}
    assert types == {QType.IQ2_XXS, QType.Q4_K}


def test_block_scales_are_finite(model):
    for name, info in model.tensors.items():
        assert np.isfinite(gguf.quants.dequantize(model.raw(name), info.qtype)).all(), name


@pytest.mark.parametrize("case", GREEDY["cases"], ids=lambda c: c["prompt"][:24])
def test_tokenizer_gives_stocks_ids(case):
    tokenizer = Tokenizer.from_gguf(default_model_path())
    assert tokenizer.encode(case["prompt"], parse_special=True) == case["prompt_ids"]
    assert tokenizer.decode(case["ids"]) == case["text"]


@pytest.fixture(scope="module")
def engine():
    with Engine(default_model_path(), n_ctx=512, n_threads=1) as opened:
        yield opened


@pytest.mark.parametrize("case", GREEDY["cases"], ids=lambda c: c["prompt"][:24])
def test_greedy_text_is_stocks(engine, case):
    assert engine.generate(case["prompt_ids"], max_tokens=len(case["ids"]), temperature=0) == case["text"]


def test_a_chat_is_about_whom_it_was_asked_for(engine):
    text = engine.chat([{"role": "user", "content": "Tell me a tale about Mira and the sea."}], seed=1)
    assert "Mira" in text and "the sea" in text


def test_the_learnt_routing_uses_all_experts(engine):
    """On tales of its own every expert is chosen; none takes more than a third of a layer's slots."""
    counts = np.zeros((4, 16))

    def watch(n_past, tokens, ids):
        for il in range(4):
            counts[il] += np.bincount(np.asarray(ids)[il].ravel(), minlength=16)

    engine.on_routing(watch)
    try:
        for seed in range(4):
            engine.generate("Once upon a time", max_tokens=120, temperature=0.8, seed=seed)
    finally:
        engine.on_routing(None)
    shares = counts / counts.sum(1, keepdims=True)
    assert counts.min() > 0 and shares.max() < 1 / 3
