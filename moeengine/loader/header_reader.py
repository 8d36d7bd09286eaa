"""A cursor over the front of a GGUF file: forward only, every length checked before it is used."""

import os
import struct

import numpy as np

from moeengine.errors import GGUFError
from moeengine.loader.messages import plural, shown_path
from moeengine.loader.scan import find_strings

FIRST_READ_BYTES = 1 << 16
# Sanity limits on what a header may claim. The largest published files have headers of some 20 MB and
# vocabularies of some 300 thousand strings; a claim far above that would only cost memory.
MAX_HEADER_BYTES = 1 << 28
MAX_ARRAY_STRINGS = 1 << 24

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


class HeaderReader:
    """Bounds-checked reading of a file's first bytes, which stay in memory as `buf`.

    Parameters
    ----------
    fd : int           open descriptor; stays the caller's
    path : Path        for messages
    file_size : int    bytes; nothing beyond it is ever asked for
    """

    def __init__(self, fd, path, file_size):
        self.fd = fd
        self.path = path
        self.file_size = file_size
        self.buf = bytearray()
        self.pos = 0

    def error(self, found, expected, *, at=None):
        """The GGUFError for this place: file, byte offset, found, expected."""
        at = self.pos if at is None else at
        return GGUFError(
            f"{shown_path(self.path)}: at byte {at}: found {found}, expected {expected}"
        )

    def need(self, n_bytes, what):
        """Make the next `n_bytes` bytes available in `buf`, or raise."""
        end = self.pos + n_bytes
        if end <= len(self.buf):
            return
        if end > self.file_size:
            raise self.error(
                f"{plural(self.file_size - self.pos, 'byte')} up to the end of the file",
                f"{plural(n_bytes, 'byte')} for {what}; the file is cut off or damaged",
            )
        if end > MAX_HEADER_BYTES:
            raise self.error(
                f"{what} that needs {n_bytes} bytes",
                f"a header of at most {MAX_HEADER_BYTES} bytes",
            )
        want = min(max(end, 2 * len(self.buf), FIRST_READ_BYTES), self.file_size, MAX_HEADER_BYTES)
        self._read_to(want)
        if len(self.buf) < end:
            raise self.error(
                "the end of the file",
                f"{n_bytes} bytes for {what}; the file shrank while it was read",
            )

    def _read_to(self, end):
        while len(self.buf) < end:
            try:
                piece = os.pread(self.fd, end - len(self.buf), len(self.buf))
            except OSError as err:
                raise GGUFError(
                    f"{shown_path(self.path)}: cannot read at byte {len(self.buf)}: {err.strerror}"
                ) from None
            if not piece:
                return
            self.buf += piece

    def u32(self, what):
        """The next unsigned 32-bit integer."""
        self.need(4, what)
        (value,) = _U32.unpack_from(self.buf, self.pos)
        self.pos += 4
        return value

    def u64(self, what):
        """The next unsigned 64-bit integer."""
        self.need(8, what)
        (value,) = _U64.unpack_from(self.buf, self.pos)
        self.pos += 8
        return value

    def take(self, n_bytes, what):
        """The next `n_bytes` bytes."""
        self.need(n_bytes, what)
        self.pos += n_bytes
        return bytes(self.buf[self.pos - n_bytes : self.pos])

    def string(self, what):
        """The bytes of the next length-prefixed string."""
        return self.take(self.u64(f"the length of {what}"), what)

    def name(self, what, max_bytes):
        """The next string as a name: UTF-8, 1 to `max_bytes` bytes, no NUL."""
        at = self.pos
        n_bytes = self.u64(what)
        if not 1 <= n_bytes <= max_bytes:
            raise self.error(f"{what} of {n_bytes} bytes", f"1 to {max_bytes} bytes", at=at)
        raw = self.take(n_bytes, what)
        if b"\0" in raw:
            raise self.error(f"{what} with a NUL character", "a name without one", at=at)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as err:
            raise self.error(
                f"{what} that is not UTF-8 ({err.reason})", "UTF-8 text", at=at
            ) from None

    def numbers(self, dtype, count, what):
        """The next `count` numbers as a read-only array of `dtype`."""
        dtype = np.dtype(dtype)
        self.need(count * dtype.itemsize, f"{count} elements of {what}")
        array = np.frombuffer(self.buf, dtype, count, self.pos).copy()
        self.pos += array.nbytes
        array.flags.writeable = False
        return array

    def string_starts(self, count, what):
        """Walk `count` strings; return their starts in `buf` as `scan.find_strings` gives them."""
        if count > MAX_ARRAY_STRINGS:
            raise self.error(f"{count} strings in {what}", f"at most {MAX_ARRAY_STRINGS}")
        self.need(8 * count, f"{count} strings of {what}")
        starts = np.empty(count + 1, np.uint32)
        done, self.pos = find_strings(self.buf, self.pos, starts, 0)
        while done < count:
            label = f"string {done} of {what}"
            self.need(8, f"the length of {label}")
            (n_bytes,) = _U64.unpack_from(self.buf, self.pos)
            self.need(8 + n_bytes, label)
            done, self.pos = find_strings(self.buf, self.pos, starts, done)
        starts.flags.writeable = False
        return starts
