"""Writes tales from the rule table of `rules` and parses them by the same table.

The generator draws a cast (hero, friend, place, ...), a plot, and for each part of the plot a
sentence. The parser turns each rule of `rules.SENTENCES` into one regular expression: bound slots
become named groups, free slots alternations.
A sentence's first letter is written large, so the rules have it small unless it is a name.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field
from functools import lru_cache

from . import rules

SLOT = re.compile(r"\{(\w+)\}")
NUMBER_OF = {word: value for value, word in enumerate(rules.NUMBERS)}
GENDER_OF = {**{n: "girl" for n in rules.GIRLS}, **{n: "boy" for n in rules.BOYS}}
# Splits a tale into sentences without knowing the grammar: a full stop (or ! ?), perhaps a closing
# quote, then a large letter or a quote.
SENTENCE_END = re.compile(r'(?<=[.!?])\s+(?=[A-Z"])|(?<=[.!?]")\s+(?=[A-Z"])')


# ---- generator -----------------------------------------------------------------------------------


@dataclass
class Tale:
    """`text` and the `cast` (slot -> word) that went into it.

    `plot` and `parts` name the rules used; `mentioned` the bound slots that stand in the text.
    """

    text: str
    cast: dict[str, str]
    plot: str
    parts: list[str] = field(default_factory=list)
    mentioned: set[str] = field(default_factory=set)


def made_up_name(rng: random.Random, gender: str) -> str:
    ends = rules.GIRL_ENDS if gender == "girl" else rules.BOY_ENDS
    while True:
        name = rng.choice(rules.NAME_STARTS) + rng.choice(rules.NAME_MIDDLES) + rng.choice(ends)
        if gender_of(name) == gender:
            return name


def draw_name(rng: random.Random, made_up: float = 0.25) -> tuple[str, str]:
    """A name and its gender ("girl" or "boy")."""
    gender = rng.choice(["girl", "boy"])
    if rng.random() < made_up:
        return made_up_name(rng, gender), gender
    return rng.choice(rules.GIRLS if gender == "girl" else rules.BOYS), gender


def draw_cast(rng: random.Random) -> dict[str, str]:
    cast = {slot: rng.choice(words) for slot, words in rules.BOUND.items() if words}
    if cast["weather"] in ("snow", "frost"):
        cast["season"] = "winter"
    cast["far"] = rng.choice([p for p in rules.BOUND["place"] if p != cast["place"]])
    (hero, gender), (friend, friend_gender) = draw_name(rng), draw_name(rng)
    while friend == hero:
        friend, friend_gender = draw_name(rng)
    cast |= {"hero": hero, "friend": friend}
    for slot, forms in rules.PRONOUNS.items():
        cast[slot], cast["f" + slot] = forms[gender == "boy"], forms[friend_gender == "boy"]
    a, b = rng.randint(2, 9), rng.randint(2, 9)
    return cast | {"n1": rules.NUMBERS[a], "n2": rules.NUMBERS[b], "sum": rules.NUMBERS[a + b]}


def capitalize_first(text: str) -> str:
    """The first letter large, past an opening quote."""
    at = next(i for i, c in enumerate(text) if c.isalpha())
    return text[:at] + text[at].upper() + text[at + 1 :]


def fill(template: str, cast: dict[str, str], rng: random.Random, tale: Tale) -> str:
    """Replaces every slot.

    The friend's first mention says whose friend it is; a free slot does not repeat within a sentence.
    """
    used: set[str] = set()

    def replace(match: re.Match) -> str:
        slot = match[1]
        if slot in rules.FREE:
            word = SLOT.sub(replace, rng.choice([w for w in rules.FREE[slot] if w not in used] or rules.FREE[slot]))
            used.add(word)
            return word
        if (
            slot == "friend"
            and "friend" not in tale.mentioned
            and tale.plot
            and not template.startswith(("{his} best", "{friend} lived"))
        ):
            tale.mentioned.add(slot)
            return f"{cast['his']} friend {cast['friend']}"
        tale.mentioned.add(slot)
        return cast[slot]

    return SLOT.sub(replace, template)


def write_tale(
    rng: random.Random, cast: dict[str, str] | None = None, plot: str | None = None, with_weather: bool = False
) -> Tale:
    """One tale of three to eight sentences."""
    cast = cast or draw_cast(rng)
    plot = plot or rng.choice(list(rules.PLOTS))
    tale = Tale("", cast, plot)
    sentences = []
    for part in rules.PLOTS[plot]:
        name = rng.choice(part.split("|"))
        if name.endswith("?"):
            name = name[:-1]
            if not (with_weather and name == "weather") and rng.random() < 0.5:
                continue
        if len(sentences) == 8:
            break
        if name == "weather":
            tale.mentioned.add("weather")
        rule = f"weather_{cast['weather']}" if name == "weather" else name
        options = rules.SENTENCES[rule]
        if rule.startswith("ending") and len(sentences) < 3 and rng.random() < 0.5:
            options = rules.SENTENCES["ending"]
        sentences.append(capitalize_first(fill(rng.choice(options), cast, rng, tale)))
        tale.parts.append(rule)
    tale.text = " ".join(sentences)
    return tale


def topic_of(tale: Tale, rng: random.Random) -> str | None:
    """What a user might have asked for to be told `tale`; None = nothing in particular."""
    cast, has = tale.cast, tale.mentioned
    extras = [cast["place"]] if "place" in has else []
    extras += [f"a {cast['animal']}"] if "animal" in has else []
    extras += [f"a {cast['look']} {cast['thing']}"] if {"look", "thing"} <= has else []
    extras += [f"a {cast['thing']}"] if "thing" in has else []
    extras += [cast["friend"]] if "friend" in has else []
    extras += [f"the {cast['weather']}"] if "weather" in has else []
    extras += [cast["far"]] if "far" in has else []
    extras += {"quarrel": ["a quarrel"], "wish": ["a wish"], "sum": ["some " + cast["goods"]]}.get(tale.plot, [])
    kind = rng.random()
    if kind < 0.1:
        return None
    if kind < 0.25 or not extras:
        return cast["hero"]
    if kind < 0.8:
        return f"{cast['hero']} and {rng.choice(extras)}"
    options = [e for e in extras if e != cast["friend"]]
    options += [f"a {cast['trait']} {cast['girl']}"] if {"trait", "girl"} <= has else []
    return rng.choice(options) if options else cast["hero"]


def write_turn(rng: random.Random) -> tuple[str, str, Tale | None]:
    """(what the user says, what the teller answers, the tale if the answer is one)."""
    kind = rng.random()
    if kind < 0.06:
        asks, answers = rng.choice(rules.SMALL_TALK)
        return rng.choice(asks), rng.choice(answers), None
    if kind < 0.12:
        cast, tale = draw_cast(rng), Tale("", {}, "")
        ask, answer = rng.choice(rules.SUM_TALK[0]), rng.choice(rules.SUM_TALK[1])
        return fill(ask, cast, rng, tale), capitalize_first(fill(answer, cast, rng, tale)), None
    tale = write_tale(rng, with_weather=rng.random() < 0.3)
    topic = topic_of(tale, rng)
    ask = rng.choice(rules.ASK_ANY) if topic is None else rng.choice(rules.ASK).format(topic=topic)
    return ask, tale.text, tale


# ---- parser --------------------------------------------------------------------------------------


def alternation(words) -> str:
    return "(?:" + "|".join(sorted(words, key=len, reverse=True)) + ")"


@lru_cache(None)
def name_pattern() -> str:
    made_up = (
        alternation(rules.NAME_STARTS) + alternation(rules.NAME_MIDDLES) + alternation(rules.GIRL_ENDS + rules.BOY_ENDS)
    )
    return f"(?:{alternation(rules.GIRLS + rules.BOYS)}|{made_up})"


@lru_cache(None)
def free_pattern(slot: str) -> str:
    """Alternation of a free slot; bound slots inside stay open (no group) because they may stand twice."""
    return alternation(
        SLOT.sub(
            lambda m: free_pattern(m[1]) if m[1] in rules.FREE else bound_pattern(m[1]),
            re.escape(w).replace(r"\{", "{").replace(r"\}", "}"),
        )
        for w in rules.FREE[slot]
    )


@lru_cache(None)
def bound_pattern(slot: str) -> str:
    if slot in ("hero", "friend"):
        return name_pattern()
    if slot in ("n1", "n2", "sum"):
        return alternation(rules.NUMBERS)
    pronoun = slot[1:] if slot.startswith("f") and slot[1:] in rules.PRONOUNS else slot
    if pronoun in rules.PRONOUNS:
        return alternation(rules.PRONOUNS[pronoun])
    return alternation(re.escape(w) for w in rules.BOUND["place" if slot == "far" else slot])


def compile_rule(template: str) -> re.Pattern:
    seen: set[str] = set()

    def replace(match: re.Match) -> str:
        slot = match[1]
        if slot in rules.FREE:
            return free_pattern(slot)
        if slot in seen:
            return f"(?P={slot})"
        seen.add(slot)
        group = f"(?P<{slot}>{bound_pattern(slot)})"
        return f"(?:(?:her|his) friend )?{group}" if slot == "friend" else group

    return re.compile(SLOT.sub(replace, re.escape(template).replace(r"\{", "{").replace(r"\}", "}")))


@lru_cache(None)
def sentence_patterns() -> list[tuple[str, re.Pattern]]:
    return [(rule, compile_rule(t)) for rule, templates in rules.SENTENCES.items() for t in templates]


def gender_of(name: str) -> str | None:
    """ "girl" or "boy" for names of the lists and made-up ones; None when the name tells nothing."""
    if name in GENDER_OF:
        return GENDER_OF[name]
    if name.endswith(tuple(rules.GIRL_ENDS)):
        return "girl"
    return "boy" if name.endswith(tuple(rules.BOY_ENDS)) else None


def agrees(found: dict[str, str]) -> bool:
    """Pronouns fit each other and the name, and a sum that is spelt out is right."""
    for who, prefix in (("hero", ""), ("friend", "f")):
        genders = {gender_of(found[who])} - {None} if who in found else set()
        for slot, (girl, _) in rules.PRONOUNS.items():
            if prefix + slot in found:
                genders.add("girl" if found[prefix + slot] == girl else "boy")
        if len(genders) > 1:
            return False
    if {"n1", "n2", "sum"} <= found.keys():
        return NUMBER_OF[found["n1"]] + NUMBER_OF[found["n2"]] == NUMBER_OF[found["sum"]]
    return True


def parse_sentence(sentence: str, *, strict: bool = True) -> list[tuple[str, dict[str, str]]]:
    """Every (rule, bound words) by which `sentence` can be read; empty when the grammar does not have it.

    `strict`: readings whose pronouns do not fit the names, or whose sum is wrong, are left out.
    """
    at = next((i for i, c in enumerate(sentence) if c.isalpha()), None)
    if at is None or not sentence[at].isupper():
        return []
    small = sentence[:at] + sentence[at].lower() + sentence[at + 1 :]
    readings = []
    for rule, pattern in sentence_patterns():
        for text in (sentence, small):
            match = pattern.fullmatch(text)
            if match and (not strict or agrees(match.groupdict())):
                readings.append((rule, match.groupdict()))
    return readings


def split_sentences(text: str) -> list[str]:
    return [s for s in SENTENCE_END.split(text.strip()) if s]


@dataclass
class Reading:
    """What the parser found in a tale.

    `parsed[i]`: the rules have sentence i; `sound[i]`: beside that its pronouns fit its names and
    its sum is right. `hero_kept`: the first sentence's hero is the hero of every later sentence that
    names one, and some later sentence does. `cast_kept`: beside that every parsed sentence is sound
    and none contradicts what was said of friend, thing, animal, place, family or pronouns.
    """

    sentences: list[str]
    parsed: list[bool]
    sound: list[bool]
    hero: str | None
    hero_kept: bool
    cast_kept: bool


def read_tale(text: str) -> Reading:
    """Parses a whole tale. Where a sentence has several readings the one that fits the cast so far is taken."""
    sentences = split_sentences(text)
    cast: dict[str, str] = {}
    parsed, sound, hero_kept, cast_kept, last_named = [], [], True, True, 0
    for i, sentence in enumerate(sentences):
        readings = parse_sentence(sentence)
        sound.append(bool(readings))
        readings = readings or parse_sentence(sentence, strict=False)
        parsed.append(bool(readings))
        if not readings:
            continue

        against = [{s for s, w in found.items() if cast.get(s, w) != w} for _, found in readings]
        best = min(range(len(readings)), key=lambda r: ("hero" in against[r], len(against[r])))
        found = readings[best][1]
        hero_kept &= "hero" not in against[best]
        cast_kept &= sound[-1] and not against[best]
        cast = {**found, **cast}
        if "hero" in found:
            last_named = i
    kept = hero_kept and last_named > 0
    return Reading(sentences, parsed, sound, cast.get("hero"), kept, kept and cast_kept)
