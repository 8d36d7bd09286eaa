"""Metadata values of a GGUF file: the lazy string array, and typed access that names the key."""

import math
from collections.abc import Sequence

import numpy as np

from moeengine.errors import GGUFError
from moeengine.loader.messages import escaped, quoted, shown_path
from moeengine.loader.scan import decode_strings

MISSING = object()  # default of the getters: the key has to be there


class StringArray(Sequence):
    """The strings of one metadata array, decoded only when asked for.

    Text that is not valid UTF-8 is decoded with U+FFFD in place of the bad bytes; `raw` gives them exactly.

    Parameters
    ----------
    buf : bytearray         the header bytes of the file; never changed any more
    starts : uint32 (n + 1,)  as filled by `scan.find_strings`
    """

    __slots__ = ("_buf", "_starts")

    def __init__(self, buf, starts):
        self._buf = buf
        self._starts = starts

    def __len__(self):
        return len(self._starts) - 1

    def raw(self, i):
        """The exact bytes of string `i`."""
        n = len(self)
        if not -n <= i < n:
            raise IndexError(f"string {i} of {n}")
        i %= n
        return bytes(self._buf[int(self._starts[i]) : int(self._starts[i + 1]) - 8])

    def __getitem__(self, i):
        if isinstance(i, slice):
            return [self[j] for j in range(*i.indices(len(self)))]
        return self.raw(i).decode("utf-8", "replace")

    def __iter__(self):
        return iter(self.tolist())

    def tolist(self):
        """All strings as a list, in one pass."""
        return decode_strings(self._buf, self._starts)

    def __repr__(self):
        return f"StringArray({len(self)} strings)"


class TypedMetadata:
    """Typed access to `self.metadata`; errors name `self.path`, the key, found and expected.

    Every getter takes a default for a key that is absent; without one an absent key is a GGUFError.
    A value of the wrong type or range is a GGUFError, with or without a default.
    """

    def get(self, key, default=MISSING):
        """The value as it stands: int, float, bool, str, ndarray or StringArray."""
        if key in self.metadata:
            return self.metadata[key]
        if default is MISSING:
            raise GGUFError(
                f"{shown_path(self.path)}: key {quoted(key)}: not found, expected to be present"
            )
        return default

    def get_int(self, key, default=MISSING, lo=None, hi=None):
        """An integer with lo <= value <= hi; any integer type of the file will do."""
        value = self.get(key, default)
        if key not in self.metadata:
            return value
        if isinstance(value, bool) or not isinstance(value, int):
            self.refuse(key, value, "an integer")
        if lo is not None and value < lo or hi is not None and value > hi:
            self.refuse(key, value, f"an integer{_range(lo, hi)}")
        return value

    def get_per_layer(self, key, n_layer, default=MISSING, lo=None, hi=None):
        """Integers with lo <= value <= hi, one a layer: tuple (n_layer,). The file gives one for all, or an array of them.

        default : int, or sequence of n_layer
        """
        value = self.get(key, default)
        if key not in self.metadata:
            return (value,) * n_layer if isinstance(value, int) else tuple(value)
        if not isinstance(value, np.ndarray):
            return (self.get_int(key, lo=lo, hi=hi),) * n_layer
        counts = self.get_array(key, kind="int").tolist()
        if len(counts) < n_layer:
            self.refuse(key, value, f"{n_layer} elements, one a layer")
        for il, count in enumerate(counts[:n_layer]):
            if lo is not None and count < lo or hi is not None and count > hi:
                self.refuse(key, count, f"an integer{_range(lo, hi)} (layer {il})")
        return tuple(counts[:n_layer])

    def get_float(self, key, default=MISSING, lo=None, hi=None):
        """A finite float with lo <= value <= hi; an integer is taken too."""
        value = self.get(key, default)
        if key not in self.metadata:
            return value
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            self.refuse(key, value, "a number")
        if (
            not math.isfinite(value)
            or lo is not None
            and value < lo
            or hi is not None
            and value > hi
        ):
            self.refuse(key, value, f"a finite number{_range(lo, hi)}")
        return float(value)

    def get_bool(self, key, default=MISSING):
        """A bool; no other type is taken for one."""
        value = self.get(key, default)
        if key in self.metadata and not isinstance(value, bool):
            self.refuse(key, value, "a bool")
        return value

    def get_str(self, key, default=MISSING):
        """A string."""
        value = self.get(key, default)
        if key in self.metadata and not isinstance(value, str):
            self.refuse(key, value, "a string")
        return value

    def get_array(self, key, default=MISSING, *, kind=None, length=None):
        """An array.

        Parameters
        ----------
        kind : None, "int", "float", "bool" or "str"   element kind; "float" takes integers too
        length : int                                   required number of elements

        Returns
        -------
        ndarray (n,), read-only, of the file's own element type; or StringArray
        """
        value = self.get(key, default)
        if key not in self.metadata:
            return value
        expected = f"an array{f' of {kind}' if kind else ''}"
        expected += f" with {length} elements" if length is not None else ""
        if not isinstance(value, (np.ndarray, StringArray)) or kind and not _is_kind(value, kind):
            self.refuse(key, value, expected)
        if length is not None and len(value) != length:
            self.refuse(key, value, expected)
        return value

    def refuse(self, key, value, expected):
        """Raise the GGUFError for a value of `key` that is not what was `expected`."""
        where = f"{shown_path(self.path)}: key {quoted(key)}"
        raise GGUFError(f"{where}: found {described(value)}, expected {expected}")


def described(value):
    """A short printable account of a metadata value: its type and, for scalars, the value."""
    if isinstance(value, StringArray):
        return f"an array of {len(value)} strings"
    if isinstance(value, np.ndarray):
        return f"an array of {len(value)} {value.dtype.name}"
    if isinstance(value, str):
        return f"the string '{escaped(value)}'"
    return f"the {type(value).__name__} {value}"


def _is_kind(value, kind):
    if isinstance(value, StringArray) or kind == "str":
        return isinstance(value, StringArray) and kind == "str"
    return value.dtype.kind in {"int": "iu", "float": "fiu", "bool": "b"}[kind]


def _range(lo, hi):
    if lo is not None and hi is not None:
        return f" from {lo} to {hi}"
    return f" of at least {lo}" if lo is not None else f" of at most {hi}" if hi is not None else ""
