"""The model that ships: it is what its card says, and stock's greedy text for it is recorded beside this file."""

import json
from pathlib import Path

import gguf
import numpy as np
import pytest

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
