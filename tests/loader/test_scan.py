"""The compiled string loops: right on sound arrays, safe on any other bytes."""

import random
import struct

import numpy as np
import pytest

from moeengine.loader.scan import decode_strings, find_strings


def packed(words):
    return bytearray(b"".join(struct.pack("<Q", len(w)) + w for w in words))


@pytest.mark.parametrize("words", [[], [b""], [b"", b"a", b"bc" * 500, b"\xff"]])
def test_whole_array(words):
    starts = np.zeros(len(words) + 1, np.uint32)
    buf = bytearray(b"xx") + packed(words)
    assert find_strings(buf, 2, starts, 0) == (len(words), len(buf))
    assert [bytes(buf[starts[i] : starts[i + 1] - 8]) for i in range(len(words))] == words
    assert decode_strings(buf, starts) == [w.decode("utf-8", "replace") for w in words]


def test_goes_on_where_it_stopped():
    words = [b"x" * i for i in range(20)]
    buf = packed(words)
    for first_piece in range(len(buf)):
        starts = np.zeros(len(words) + 1, np.uint32)
        done, pos = find_strings(buf[:first_piece], 0, starts, 0)
        assert pos <= first_piece and (done < len(words) or first_piece == len(buf))
        assert find_strings(buf, pos, starts, done) == (len(words), len(buf))
        assert decode_strings(buf, starts) == [w.decode() for w in words]


@pytest.mark.parametrize("length", [2**64 - 1, 2**64 - 8, 2**64 - 16, 2**63, 2**32, 9])
def test_lengths_beyond_the_buffer_stop_the_walk(length):
    starts = np.zeros(3, np.uint32)
    assert find_strings(bytearray(struct.pack("<Q", length) + b"12345678"), 0, starts, 0) == (0, 0)


def test_any_bytes_are_safe():
    rng = random.Random(5)
    for _ in range(3000):
        buf = bytearray(rng.choice((0, 0, 0, 1, 2, 8, 255)) for _ in range(rng.randrange(200)))
        n = rng.randrange(8)
        starts = np.zeros(n + 1, np.uint32)
        done, pos = find_strings(buf, 0, starts, 0)
        assert 0 <= done <= n and 0 <= pos <= len(buf)


def test_positions_outside_are_refused():
    starts = np.zeros(2, np.uint32)
    for call in (
        lambda: find_strings(bytearray(4), 5, starts, 0),
        lambda: find_strings(bytearray(4), 0, starts[:0], 0),
    ):
        with pytest.raises(IndexError):
            call()
    for bad in ([0, 7], [9, 30], [30, 40], [5, 4]):
        with pytest.raises(IndexError):
            decode_strings(bytearray(20), np.array(bad, np.uint32))
