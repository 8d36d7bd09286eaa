"""Vocabulary files with damaged bytes: everything either works or is a typed error."""

import random

import pytest

from moeengine.errors import MoeEngineError
from moeengine.tokenizer import ChatTemplate, Tokenizer
from tests.tokenizer.vocabs import CONTROL, USER_DEFINED, write_byte_bpe, write_spm

TEXT = "a ab <x> \u20ac\n<s> \u2581"
EXTRA = [("<x>", CONTROL), ("  ", USER_DEFINED)]
KEYS = {
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tokenizer.chat_template": "{{ messages[0].content | trim }}<x>",
}


def use(path):
    tokenizer = Tokenizer.from_gguf(path)
    ids = tokenizer.encode(TEXT, parse_special=True)
    assert all(0 <= i < tokenizer.n_vocab for i in ids)
    tokenizer.decode(ids, special=True)
    tokenizer.decode(range(0, tokenizer.n_vocab, 7))
    assert all(0 <= i < tokenizer.n_vocab for i in tokenizer.eog_ids)
    ChatTemplate.from_gguf(path, tokenizer).encode([{"role": "user", "content": TEXT}])


@pytest.mark.parametrize("kind", ["byte_bpe", "spm"])
def test_damage_is_a_typed_error_or_harmless(tmp_path, kind):
    path = tmp_path / "v.gguf"
    if kind == "byte_bpe":
        write_byte_bpe(path, ["a b", "\u0120 ab"], EXTRA, pre="qwen2", keys=KEYS)
    else:
        write_spm(path, [("\u2581", -1), ("a", -2), ("ab", -3)], EXTRA, keys=KEYS)
    use(path)
    good, rng, n_refused = path.read_bytes(), random.Random(kind), 0
    for _ in range(150):
        damaged = bytearray(good)
        for _ in range(rng.choice((1, 1, 2, 8))):
            damaged[rng.randrange(24, len(good))] = rng.choice(
                (0, 1, 0x20, 0x7F, 0x80, 0xFF, rng.randrange(256))
            )
        path.write_bytes(damaged)
        try:
            use(path)
        except MoeEngineError:
            n_refused += 1
    assert n_refused > 10
