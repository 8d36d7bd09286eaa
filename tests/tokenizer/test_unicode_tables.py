"""The category ranges against Python's own Unicode data, whatever version that is."""

import unicodedata
from itertools import pairwise

from moeengine.tokenizer.unicode_tables import ranges


def test_ranges_are_those_of_the_categories():
    ours = {c: name for name in "LMNPS" for a, b in ranges(name) for c in range(a, b + 1)}
    for code in (*range(0x32000), *range(0xE0000, 0xE0400), *range(0x10FF00, 0x110000)):
        theirs = unicodedata.category(chr(code))[0]
        if theirs in "LMNPS" and code in ours:
            assert ours[code] == theirs, hex(code)
        elif theirs in "ZC":  # unassigned in one version may be assigned in the other
            assert code not in ours or unicodedata.category(chr(code)) == "Cn", hex(code)


def test_ranges_ascend_and_do_not_touch():
    for name in "LMNPS":
        runs = ranges(name)
        assert all(a <= b for a, b in runs)
        assert all(b + 1 < c for (_, b), (c, _) in pairwise(runs))
    assert sum(b - a + 1 for a, b in ranges("L")) == 136726  # of Unicode 15.1
