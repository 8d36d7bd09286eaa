"""Pre-tokenizers: names, digit groups, and time on long runs."""

import time

import pytest

from moeengine.errors import UnsupportedError
from moeengine.tokenizer.pre import PRE_TOKENIZERS, cut_digits, expand, pre_tokenizer
from tests.tokenizer.vocabs import byte_bpe

NAMED_IN_THE_ISSUE = (
    "llama-bpe qwen2 qwen35 deepseek-llm deepseek-coder deepseek-v3 gpt-2 smollm gpt-4o falcon starcoder refact command-r "
    "mpt olmo dbrx tekken gemma4"
).split()


def test_the_common_names_are_known():
    assert set(NAMED_IN_THE_ISSUE) <= set(PRE_TOKENIZERS)


def test_an_unknown_name_is_refused_with_the_list():
    with pytest.raises(UnsupportedError, match=r"m.gguf: .*'qwen-2'.*similar: qwen2.*bloom.*youtu"):
        pre_tokenizer("qwen-2", "m.gguf")


@pytest.mark.parametrize("text, pieces", [
    ("1234567", ["1", "234", "567"]),
    ("a123456b", ["a", "123", "456", "b"]),
    ("12\u06633456", ["12\u06633", "456"]),
    ("", []),
])  # fmt: skip
def test_digits_from_the_right(text, pieces):
    assert cut_digits(text, "superbpe") == pieces


def test_digits_keep_what_precedes_with_their_first_group():
    assert cut_digits("ab1234 56", "afmoe") == ["ab1", "234", " 56"]


def test_expansion_nests_in_brackets():
    assert expand(r"[^\s\p{Z}]".replace("Z", "N")).startswith(r"[^\s")
    assert expand(r"\p{N}").startswith("[") and expand(r"\p{N}").endswith("]")


@pytest.mark.parametrize(
    "pre",
    ["gpt-4o", "qwen2", "deepseek-llm", "deepseek-v3", "superbpe", "afmoe", "bloom", "jais-2"],
)
def test_long_runs_take_linear_time(tmp_path, pre):
    tokenizer = byte_bpe(tmp_path, ["a a", "aa aa", "A A", "AA AA"], pre=pre)
    tokenizer.require_text()
    for unit in ("a", "A", " ", "\n", "1", "!", "\u4e2d", "aB", "\u0301"):
        start = time.process_time()
        tokenizer.encode(unit * 15_000)
        assert time.process_time() - start < 2, unit
