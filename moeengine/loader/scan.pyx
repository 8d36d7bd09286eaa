"""Tight loops over GGUF string arrays: find where each string lies, decode them all.

Both work on bytes that are already in memory and look at nothing outside them.
"""

from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy


def find_strings(const uint8_t[::1] buf, size_t pos, uint32_t[::1] starts, size_t first):
    """Walk length-prefixed strings from `pos` until the array is complete or the buffer ends.

    Parameters
    ----------
    buf : uint8 (N,)          N <= 0xFFFFFFF0; a string is a little-endian u64 length, then its bytes
    pos : int                 where the length of string `first` stands
    starts : uint32 (n + 1,)  out: starts[i] = index of the first byte of string i; when the array is complete
                              starts[n] = end + 8, so that string i is starts[i] : starts[i + 1] - 8
    first : int               number of strings already found

    Returns
    -------
    (done, pos) : strings found so far, and where the first one not found has its length
    """
    cdef size_t size = buf.shape[0], n = starts.shape[0] - 1, i = first
    cdef uint64_t length
    if pos > size or starts.shape[0] < 1 or size > <size_t>0xFFFFFFF0:
        raise IndexError("position outside the buffer")
    with nogil:
        while i < n:
            if size - pos < 8:
                break
            memcpy(&length, &buf[pos], 8)
            if length > size - pos - 8:
                break
            starts[i] = <uint32_t>(pos + 8)
            pos += 8 + <size_t>length
            i += 1
        if i == n:
            starts[n] = <uint32_t>(pos + 8)
    return i, pos


def decode_strings(const uint8_t[::1] buf, const uint32_t[::1] starts):
    """Decode all strings found by `find_strings`; bytes that are not UTF-8 become U+FFFD.

    Returns
    -------
    list of str (n,)
    """
    cdef Py_ssize_t i, n = starts.shape[0] - 1, size = buf.shape[0]
    cdef const char *base = <const char *> &buf[0] if size else NULL
    cdef list out = [None] * n
    for i in range(n):
        if starts[i + 1] > size + 8 or starts[i + 1] < 8 or starts[i] > starts[i + 1] - 8:
            raise IndexError("string outside the buffer")
        out[i] = PyUnicode_DecodeUTF8(base + starts[i], starts[i + 1] - 8 - starts[i], "replace")
    return out
