"""Streamed text: whole characters, exact stop strings, nothing leaked, lost or doubled."""

import random

import pytest

from moeengine.engine.answer_text import AnswerText


def feed(data, cuts, stops=()):
    """Pieces of `data`, bytes, cut at `cuts`; the tail is the last."""
    stream = AnswerText(tuple(stops))
    pieces = []
    for begin, end in zip([0, *cuts], [*cuts, len(data)]):
        pieces.append(stream.push(data[begin:end]))
        if stream.stop is not None:
            break
    return [*pieces, stream.finish()], stream.stop


def expected(text, stops):
    """Character by character: the stop that is complete first, the longest of those."""
    for end in range(1, len(text) + 1):
        met = [s for s in stops if text[:end].endswith(s)]
        if met:
            return text[: end - max(map(len, met))], max(met, key=len)
    return text, None


def test_every_cut_of_a_text_gives_the_same():
    rng = random.Random(1)
    stops = ("own fox", "fox ju", "ö", "…", "aab", "ab", "\n\n")
    texts = [
        "the brown fox jumps",
        "the brown fo",
        "a schöner fox",
        "aaab",
        "aaaaac",
        "…",
        "x…\n\n",
        "ow\n",
        "日本語 emoji 👩‍👩‍👧 end",
        "own own fox",
    ]
    for text in texts:
        data = text.encode()
        for _ in range(100):
            chosen = tuple(rng.sample(stops, rng.randint(0, 4)))
            cuts = sorted(rng.sample(range(len(data) + 1), min(rng.randint(0, 8), len(data))))
            pieces, stop = feed(data, cuts, chosen)
            assert ("".join(pieces), stop) == expected(text, chosen), (text, cuts, chosen)
            assert "\ufffd" not in "".join(pieces)


def test_nothing_of_a_stop_string_is_shown_early():
    stream = AnswerText(("own fox",))
    assert [stream.push(p) for p in (b"the br", b"own", b" f", b"ox", b" jumps")] == [
        "the br",
        "",
        "",
        "",
        "",
    ]
    assert stream.stop == "own fox" and stream.finish() == ""


def test_a_tail_that_only_looked_like_a_stop_is_shown():
    stream = AnswerText(("own fox",))
    assert stream.push(b"own fo") == "" and stream.finish() == "own fo"
    stream = AnswerText(("ab",))
    assert stream.push(b"a") == "" and stream.push(b"c") == "ac"


def test_a_character_over_four_tokens():
    stream = AnswerText()
    assert [stream.push(bytes([b])) for b in " 😀".encode()] == [" ", "", "", "", "😀"]


@pytest.mark.parametrize(
    "data, text",
    [
        (b"ab\xf0\x9f", "ab\ufffd"),  # stops after half a character
        (b"a\x80b", "a\ufffdb"),  # stray continuation byte
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b"\xed\xa0\x80", b"\xed\xa0\x80".decode("utf-8", "replace")),  # surrogate
    ],
)
def test_bytes_that_are_no_text(data, text):
    for cut in range(len(data) + 1):
        pieces, _ = feed(data, [cut])
        assert "".join(pieces) == text == data.decode("utf-8", "replace")
        "".join(pieces).encode("utf-8")


def test_a_stop_found_only_when_the_last_bytes_are_flushed():
    stream = AnswerText(("\ufffd",))
    assert stream.push(b"a\xe2\x82") == "a"
    assert stream.finish() == "" and stream.stop == "\ufffd"


def test_a_control_token_is_a_stop_string_but_never_text():
    stream = AnswerText(("<|im_end|>",))
    assert stream.push(b"hi") == "hi"
    assert stream.push(b"", hidden="<|im_end|>") == "" and stream.stop == "<|im_end|>"
    stream = AnswerText(("<|im_end|>",))
    assert stream.push(b"", hidden="<|im_start|>") == ""
    assert stream.push(b"ok") == "ok" and stream.finish() == "" and stream.stop is None


def test_a_stop_string_over_a_control_token_and_text():
    stream = AnswerText(("<e>\nUser:",))
    pieces = [
        stream.push(b"a"),
        stream.push(b"", hidden="<e>"),
        stream.push(b"\nUser"),
        stream.push(b":"),
    ]
    assert pieces == ["a", "", "", ""] and stream.stop == "<e>\nUser:"
    stream = AnswerText(("<e>\nUser:",))
    pieces = [
        stream.push(b"a"),
        stream.push(b"", hidden="<e>"),
        stream.push(b"\nUse"),
        stream.push(b"x"),
    ]
    assert pieces == ["a", "", "", "\nUsex"]


def test_a_stop_string_that_the_reader_would_see_around_a_control_token():
    stream = AnswerText(("abc",))
    pieces = [
        stream.push(b"xab"),
        stream.push(b"", hidden="<e>"),
        stream.push(b"cd"),
        stream.finish(),
    ]
    assert "".join(pieces) == "x" and stream.stop == "abc"


def test_after_a_stop_nothing_follows():
    stream = AnswerText(("b",))
    assert stream.push(b"abc") == "a"
    assert stream.push(b"more") == "" and stream.finish() == ""
