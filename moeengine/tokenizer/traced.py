"""Strings that remember which of their characters a template wrote itself.

A chat template mixes its own text, which may spell control tokens, with text of users, which must not. Literals of
the template are made Traced; operations that keep characters whole keep their trace. Whatever else is done to a string
gives a plain `str`, which counts as written by a user, so a forgotten operation errs on the safe side.
"""

import re
import string

MAX_TRACED_PARTS = 1000  # beyond, tracing would take longer than it is worth


class Traced(str):
    """A str with the spans of it that are trusted.

    Attributes
    ----------
    trusted : tuple of (start, end)    ascending, not empty, not touching
    """

    __slots__ = ("trusted",)

    def __new__(cls, text="", trusted=()):
        self = super().__new__(cls, text)
        self.trusted = tuple(trusted)
        return self

    def __str__(self):
        return self

    def __add__(self, other):
        return joined("", (self, other)) if isinstance(other, str) else NotImplemented

    def __radd__(self, other):
        return joined("", (other, self)) if isinstance(other, str) else NotImplemented

    def __mul__(self, count):
        if not isinstance(count, int):
            return NotImplemented
        if self.trusted == ((0, len(self)),):
            return literal(str.__mul__(self, count))
        return joined("", [self] * count) if count < MAX_TRACED_PARTS else str.__mul__(self, count)

    __rmul__ = __mul__

    def __mod__(self, values):
        return percent_formatted(self, values)

    def __getitem__(self, key):
        if isinstance(key, slice):
            start, stop, step = key.indices(len(self))
            return _cut(self, start, stop) if step == 1 else str.__getitem__(self, key)
        at = range(len(self))[key]
        return _cut(self, at, at + 1)

    def strip(self, chars=None):
        return self.lstrip(chars).rstrip(chars)

    def lstrip(self, chars=None):
        return _cut(self, len(self) - len(str.lstrip(self, chars)), len(self))

    def rstrip(self, chars=None):
        return _cut(self, 0, len(str.rstrip(self, chars)))

    def removeprefix(self, prefix):
        return _cut(self, len(self) - len(str.removeprefix(self, prefix)), len(self))

    def removesuffix(self, suffix):
        return _cut(self, 0, len(str.removesuffix(self, suffix)))

    def split(self, sep=None, maxsplit=-1):
        return _located(self, str.split(self, sep, maxsplit), len(sep or ""))

    def rsplit(self, sep=None, maxsplit=-1):
        return _located(self, str.rsplit(self, sep, maxsplit), len(sep or ""))

    def splitlines(self, keepends=False):
        lines = _located(self, str.splitlines(self, True), 0)
        return (
            lines
            if keepends
            else [line[: len(text)] for line, text in zip(lines, str.splitlines(self))]
        )

    def partition(self, sep):
        return tuple(_located(self, str.partition(self, sep), 0))

    def rpartition(self, sep):
        return tuple(_located(self, str.rpartition(self, sep), 0))

    def replace(self, old, new, count=-1):
        return joined(new, self.split(old, count)) if old else str.replace(self, old, new, count)

    def join(self, parts):
        return joined(self, parts)

    def lower(self):
        return _same_places(self, str.lower(self))

    def upper(self):
        return _same_places(self, str.upper(self))

    def capitalize(self):
        return _same_places(self, str.capitalize(self))

    def title(self):
        return _same_places(self, str.title(self))


def literal(text):
    """`text`, trusted throughout."""
    return Traced(text, ((0, len(text)),) if text else ())


def trusted_spans(text):
    """The trusted spans of any str."""
    return text.trusted if isinstance(text, Traced) else ()


def joined(sep, parts):
    """`sep.join(parts)` that keeps the traces of all of them."""
    parts = list(parts)
    text = str.join(sep, parts)
    spans, at = [], 0
    for i, part in enumerate(parts):
        if i:
            _append(spans, trusted_spans(sep), at)
            at += len(sep)
        _append(spans, trusted_spans(part), at)
        at += len(part)
    return Traced(text, spans)


def _append(spans, more, offset):
    for start, end in more:
        if spans and spans[-1][1] == start + offset:
            start = spans.pop()[0] - offset
        spans.append((start + offset, end + offset))


def _cut(text, start, stop):
    spans = ((max(a, start) - start, min(b, stop) - start) for a, b in text.trusted)
    return Traced(str.__getitem__(text, slice(start, stop)), [(a, b) for a, b in spans if a < b])


def _located(text, parts, gap):
    """Cut `text` where its `parts` stand, one after the other with at least `gap` characters between."""
    if len(parts) > MAX_TRACED_PARTS:
        return parts
    found, at = [], 0
    for part in parts:
        at = str.find(text, part, at)
        found.append(_cut(text, at, at + len(part)))
        at += len(part) + gap
    return found


def _same_places(text, changed):
    return Traced(changed, text.trusted) if len(changed) == len(text) else changed


def percent_formatted(text, values):
    """`text % values`; traced when nothing but `%s` and `%%` stands in `text`."""
    plain = str.__mod__(text, values)
    pieces = re.findall("%.|[^%]+", text, re.DOTALL)
    if any(piece[0] == "%" and piece not in ("%s", "%%") for piece in pieces):
        return plain
    rest = iter(values if isinstance(values, tuple) else (values,))
    place, result = 0, []
    for piece in pieces:
        written = _cut(text, place, place + len(piece))
        result.append(
            str(next(rest)) if piece == "%s" else written[:1] if piece == "%%" else written
        )
        place += len(piece)
    return joined("", result)


def brace_formatted(formatter, text, args, kwargs):
    """`text.format(*args, **kwargs)` through a sandboxed `formatter`, keeping the traces of text and plain fields."""
    result, auto = [], 0
    is_trusted = trusted_spans(text) == ((0, len(text)),)
    for written, field, spec, conversion in string.Formatter().parse(text):
        result.append(literal(written) if is_trusted else written)
        if field is None:
            continue
        if not field or field[0] in ".[":
            field, auto = f"{auto}{field}", auto + 1
        value, _ = formatter.get_field(field, args, kwargs)
        if isinstance(value, str) and not spec and not conversion:
            result.append(value)
        else:
            conversion = f"!{conversion}" if conversion else ""
            result.append(formatter.vformat(f"{{{field}{conversion}:{spec}}}", args, kwargs))
    return joined("", result)
