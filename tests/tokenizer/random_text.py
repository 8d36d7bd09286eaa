"""Seeded random texts of every kind that tokenizers stumble over."""

import random
import unicodedata

POOLS = (
    "abcdefgh XYZ 'sStTreREveVEmMllLLdD", " \t\n\r\v\f\x85\xa0\u1680\u2000\u2003\u2028\u2029\u202f\u205f\u3000",
    "0123456789\u0663\u06f4\u00b2\u00bd\u2167", "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~",
    "\u4e2d\u6587\u5b57\u7b26\u6f22\u304b\u306a\u30ab\u30ca\uac00\ub098\ub2e4\ud55c\uad6d",
    "\u00e9\u00e8\u00fc\u00f1\u00e7\u00df\u0130\u0131\u017fK\u0391\u0392\u0393\u0430\u0431\u0432\u0402\u01c5\u01c8\u02b0",
    "\u0301\u0308\u093f\u0e31\u20dd", "\U0001f680\U0001f636\u200d\U0001f32b\ufe0f\U0001f468\u200d\U0001f469\U0001f1e9\U0001f1ea\u2705",
    "\u200b\u200c\u200d\u2060\ufeff\u00ad\x00\x01\x1b\x7f\u061c", "\u3002\u06d4\u060c\u2026\u3001\uff01\uff1f\uff5e\u2018\u2019\u201c\u201d\u2014",
    "\ue000\uf8ff\U000f0000\u0378\U0001fbff\U0002ebf0\U00031350\U00010d40\u1c89",
)  # fmt: skip
WORDS = (
    "hello", "World", "HELLO", " the", "don't", "I'LL", "we've", "camelCaseWord", "HTTPServer", "3.14159", "1234567", "00",
    "12345678901", "\n\n", "\r\n", "  ", "    ", "\t\t", "x=y+1;", "//", "->", "<|im_end|>", "</s>", "<s>", "[INST]",
    "http://a.b/c?d=e", "\ufb01", "\u2163", "\u03bcm", "\uc548\ub155\ud558\uc138\uc694", "\u4f60\u597d\u4e16\u754c",
    "\u0928\u092e\u0938\u094d\u0924\u0947", "\u0645\u0631\u062d\u0628\u0627", " ", "\n", "a", "A", "<sentinel:12>", "IMGIMGAZ", "''",
)  # fmt: skip


def random_texts(seed, n):
    """`n` texts; the same for the same seed."""
    rng = random.Random(seed)
    return [_random_text(rng) for _ in range(n)]


def _random_text(rng):
    text = "".join(_random_part(rng) for _ in range(rng.randint(1, 24)))
    return unicodedata.normalize(rng.choice(("NFC", "NFD")), text) if rng.random() < 0.1 else text


def _random_part(rng):
    kind = rng.random()
    if kind < 0.35:
        return rng.choice(WORDS)
    if kind < 0.85:
        return "".join(rng.choices(rng.choice(POOLS), k=rng.randint(1, 6)))
    code = rng.randrange(0x3000 if kind < 0.95 else 0x110000)
    return "" if 0xD800 <= code < 0xE000 else chr(code)
