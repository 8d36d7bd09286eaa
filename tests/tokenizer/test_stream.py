"""Ids to text, one at a time."""

import random

from tests.tokenizer.random_text import random_texts
from tests.tokenizer.vocabs import BYTE_TOKENS, CONTROL, byte_bpe, spm

MERGES = [
    "\u00f0 \u0141",
    "\u013a \u0122",
    "\u0120 \u00f0",
    "\u00e4 \u00bd",
]  # half an emoji, the other, space + first byte, 2 of 3


def streamed(tokenizer, ids, **options):
    stream = tokenizer.stream(**options)
    pieces = [stream.feed(token_id) for token_id in ids] + [stream.flush()]
    for piece in pieces:
        piece.encode()  # valid on its own
    return pieces


def test_characters_come_out_whole(tmp_path):
    tokenizer = byte_bpe(tmp_path, MERGES)
    for text in ("\U0001f680", " \U0001f680", "\u4f60\u597d", "a\u00e9\U0001f469\u200d\U0001f467b"):
        ids = tokenizer.encode(text)
        pieces = streamed(tokenizer, ids)
        assert "".join(pieces) == text == tokenizer.decode(ids)
        assert all(piece in text for piece in pieces) and "\ufffd" not in "".join(pieces)


def test_broken_characters_end_as_replacement(tmp_path):
    tokenizer = byte_bpe(tmp_path)
    euro = tokenizer.encode("\u20ac")
    assert (
        streamed(tokenizer, euro[:2]) == ["", "", "\ufffd"]
        and tokenizer.decode(euro[:2]) == "\ufffd"
    )
    assert "".join(streamed(tokenizer, [euro[1], 97])) == "\ufffda"  # a stray continuation byte
    assert "".join(streamed(tokenizer, [euro[0], 97, *euro])) == "\ufffda\u20ac"


def test_the_pieces_are_the_whole(tmp_path):
    rng = random.Random(5)
    pieces = [
        (piece, -i) for i, piece in enumerate(("\u2581", "a", "\u2581a", "\u2581\u2581", "b"))
    ]
    for tokenizer in (
        byte_bpe(tmp_path, MERGES, [("<x>", CONTROL)]),
        spm(tmp_path, pieces, [("<x>", CONTROL)]),
    ):
        for _ in range(200):  # any ids, most of them no valid text
            ids = rng.choices(range(tokenizer.n_vocab), k=rng.randint(0, 30))
            for options in ({}, {"special": True}, {"at_start": False}):
                whole = b"".join(
                    tokenizer.token_bytes(i, special=options.get("special", False)) for i in ids
                )
                text = tokenizer.decode(ids, **options)
                assert "".join(streamed(tokenizer, ids, **options)) == text
                if tokenizer.id_of("\u2581") is None:
                    assert text == whole.decode("utf-8", "replace")


def test_the_space_before_the_first_word_goes_only_at_the_start(tmp_path):
    tokenizer = spm(tmp_path, [("\u2581", -1), ("a", -2), ("\u2581a", -3)])
    word = tokenizer.id_of("\u2581a")
    assert tokenizer.decode([word, word]) == "a a"
    assert tokenizer.decode([word, word], at_start=False) == " a a"
    assert tokenizer.decode(tokenizer.encode("  a ")) == "  a "
    plain = spm(
        tmp_path, [("\u2581", -1), ("a", -2), ("\u2581a", -3)], keys={"add_space_prefix": False}
    )
    assert plain.decode(plain.encode(" a")) == " a"


def test_byte_tokens_join_to_characters(tmp_path):
    tokenizer = spm(tmp_path, [("\u2581", -1), ("a", -2)])
    assert len(BYTE_TOKENS) == 256
    for text in random_texts(3, 20):
        ids = tokenizer.encode(text)
        assert "".join(streamed(tokenizer, ids)) == tokenizer.decode(ids)
