"""The grammar of the tales: what it writes it can read, and what is wrong it does not read."""

import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
from tales import grammar  # noqa: E402
from tales.corpus import documents  # noqa: E402


@pytest.fixture(scope="module")
def tales():
    rng = random.Random(5)
    return [grammar.write_tale(rng) for _ in range(150)]


def test_every_sentence_that_is_written_parses(tales):
    for tale in tales:
        reading = grammar.read_tale(tale.text)
        assert all(reading.parsed) and all(reading.sound), tale.text
        assert 3 <= len(reading.sentences) <= 8


def test_heroes_are_found_and_kept(tales):
    readings = [grammar.read_tale(tale.text) for tale in tales]
    assert sum(r.hero == t.cast["hero"] for r, t in zip(readings, tales, strict=True)) == len(tales)
    assert sum(r.hero_kept for r in readings) >= 0.9 * len(tales)


def test_a_changed_hero_is_noticed():
    tale = (
        "Once upon a time, a shy girl named Mira lived near the sea. "
        "Mira had one wish, and it was a blue kite. And Mira went home glad."
    )
    assert grammar.read_tale(tale).hero_kept
    assert not grammar.read_tale(tale.replace("And Mira", "And Anna")).hero_kept


@pytest.mark.parametrize("wrong", [
    "Once upon a time, a shy girl named Tom lived near the sea.",  # a boy's name
    "Three and four make eight.",
    "once upon a time, a shy girl named Mira lived near the sea.",
    "Mira was a shy girl who lived with his mother near the sea.",
    "Mira sea the kite had.",
    "",
])  # fmt: skip
def test_wrong_sentences_do_not_parse(wrong):
    assert grammar.parse_sentence(wrong) == []


def test_what_is_wrong_only_in_meaning_parses_but_is_not_sound():
    reading = grammar.read_tale("Mira was a shy girl who lived with her mother near the sea. Three and four make eight.")
    assert reading.parsed == [True, True] and reading.sound == [True, False]


def test_right_sentences_parse():
    assert grammar.parse_sentence("Three and four make seven.")
    assert grammar.parse_sentence('"Why do you look so sad?" asked the fox.')
    assert grammar.parse_sentence("Zubetta was a shy girl who lived with her mother near the sea.")


def test_documents_follow_from_the_seed():
    assert list(documents(3, 20)) == list(documents(3, 20)) != list(documents(4, 20))
