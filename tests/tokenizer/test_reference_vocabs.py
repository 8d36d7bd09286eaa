"""Ids of stock for its own test texts, over its own vocabularies."""

import pytest

from moeengine.tokenizer import Tokenizer
from tests.tokenizer.conftest import shared_vocab

NAMES = ("deepseek-llm", "gpt-2", "llama-bpe", "llama-spm", "phi-3", "qwen2")
SEPARATOR = "\n__ggml_vocab_test__\n"


def cases(path):
    """(text, ids) of the `.inp` and `.out` files beside a vocabulary. Stock's test adds no special tokens."""
    texts = path.with_name(path.name + ".inp").read_bytes().decode().split(SEPARATOR)
    lines = path.with_name(path.name + ".out").read_text().splitlines()
    if not texts[-1]:
        texts.pop()
    assert len(texts) == len(lines) > 40
    return [(text, [int(i) for i in line.split()]) for text, line in zip(texts, lines)]


@pytest.fixture(scope="module", params=NAMES)
def vocab(request):
    path = shared_vocab(request.param)
    return path, Tokenizer.from_gguf(path)


def test_ids_are_those_of_stock(vocab):
    path, tokenizer = vocab
    for text, ids in cases(path):
        assert tokenizer.encode(text, add_special=False) == ids, text


def test_decoding_gives_the_text_back(vocab):
    path, tokenizer = vocab
    for text, ids in cases(path):
        assert tokenizer.decode(ids) == text
