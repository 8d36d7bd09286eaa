"""Ids of stock for small vocabularies of every kind. The files in fixtures/ are written by tools/tokenizer_fixtures.py."""

import json
from pathlib import Path

import pytest

from moeengine.tokenizer import Tokenizer
from moeengine.tokenizer.pre import PRE_TOKENIZERS
from tests.tokenizer import vocabs
from tests.tokenizer.random_text import random_texts

FIXTURES = Path(__file__).parent / "fixtures"
BYTE_BPE, RAW_BPE, SPM = (
    json.loads((FIXTURES / f"{stem}.json").read_text()) for stem in ("byte_bpe", "raw_bpe", "spm")
)
IDS_OF_PRE = {name: group["ids"] for group in BYTE_BPE["groups"] for name in group["names"]}
SPACE = "\u2581"


@pytest.fixture(scope="module")
def byte_bpe_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocab") / "byte_bpe.gguf"
    return vocabs.write_byte_bpe(path, BYTE_BPE["merges"], BYTE_BPE["unmerged"], pre="default")


def raw_bpe(tmp_path, pre):
    keys = {"bos_token_id": 0, "eos_token_id": 1}
    return Tokenizer.from_gguf(vocabs.write_vocab(
        tmp_path / "vocab.gguf", RAW_BPE["files"][pre]["model"], RAW_BPE["tokens"], kinds=RAW_BPE["kinds"],
        merges=RAW_BPE["merges"], pre=pre, keys=keys,
    ))  # fmt: skip


def spm(tmp_path, file):
    keys = {"bos_token_id": 1, "eos_token_id": 2, **file["keys"]}
    return vocabs.spm(tmp_path, file["pieces"], file["extra"], keys=keys)


def test_every_pre_tokenizer_has_ids():
    assert set(IDS_OF_PRE) | set(RAW_BPE["files"]) >= {
        n for n, row in PRE_TOKENIZERS.items() if not row.raw
    }
    assert len(BYTE_BPE["groups"]) >= 29  # so many kinds are told apart


@pytest.mark.parametrize("pre", sorted(IDS_OF_PRE))
def test_pre_tokenizer(byte_bpe_file, pre):
    tokenizer = Tokenizer.from_gguf(byte_bpe_file, force_pre=pre)
    for text, ids in zip(BYTE_BPE["texts"], IDS_OF_PRE[pre]):
        assert tokenizer.encode(text, add_special=False) == ids, text
        assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("pre", sorted(RAW_BPE["files"]))
def test_raw_bpe(tmp_path, pre):
    tokenizer = raw_bpe(tmp_path, pre)
    for (text, add_special, _), ids in zip(RAW_BPE["cases"], RAW_BPE["files"][pre]["ids"]):
        assert tokenizer.encode(text, add_special=add_special) == ids, text


@pytest.mark.parametrize("file", SPM, ids=lambda file: str(file["keys"]))
def test_sentencepiece(tmp_path, file):
    tokenizer = spm(tmp_path, file)
    for (text, add_special, parse_special), ids in zip(file["cases"], file["ids"]):
        if (
            parse_special or 1 not in ids[1:]
        ):  # stock can join "<" and "s>" to a control token, which we never do
            assert tokenizer.encode(text, add_special, parse_special) == ids, text


@pytest.mark.parametrize("pre", sorted({group["names"][0] for group in BYTE_BPE["groups"]}))
def test_any_text_comes_back_byte_bpe(byte_bpe_file, pre):
    tokenizer = Tokenizer.from_gguf(byte_bpe_file, force_pre=pre)
    for text in random_texts(sum(map(ord, pre)), 20):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_any_text_comes_back_spm_and_raw(tmp_path):
    for tokenizer in (raw_bpe(tmp_path, "gemma4"), spm(tmp_path, SPM[0]), spm(tmp_path, SPM[1])):
        for text in random_texts(77, 60):
            assert SPACE not in text or tokenizer.decode(tokenizer.encode(text)) == text.replace(
                SPACE, " "
            )
            assert SPACE in text or tokenizer.decode(tokenizer.encode(text)) == text


def test_every_character_comes_back(byte_bpe_file):
    tokenizer = Tokenizer.from_gguf(byte_bpe_file)
    for plane in range(17):
        text = "".join(
            chr(c) for c in range(plane << 16, (plane + 1) << 16, 61) if not 0xD800 <= c < 0xE000
        )
        assert tokenizer.decode(tokenizer.encode(text)) == text
