"""Cutting a text at its special tokens, before anything else is done to it.

The longest special token is searched in the whole text first, then the next in what is left, and so on; so overlaps are
settled as in stock. Source: llama.cpp llama-vocab.cpp, tokenizer_st_partition.
"""

from bisect import bisect_right
from dataclasses import dataclass

C_SPACE = " \t\n\v\f\r"
PREFIX_SIZES = (
    2,
    6,
)  # two tries: most texts have "<|" or "<u" nowhere, some have it but not "<unuse"


@dataclass(frozen=True)
class SpecialToken:
    """A token matched whole.

    Attributes
    ----------
    text : str
    id : int
    is_control : bool          matched only where control tokens are allowed
    strip_left, strip_right : bool   the white space on that side is dropped
    """

    text: str
    id: int
    is_control: bool
    strip_left: bool = False
    strip_right: bool = False


def special_tokens(vocab):
    """The SpecialToken of every control and user-defined token of a Vocab."""
    table = vocab.table
    left, right = table.stripped_sides(vocab.pre, vocab.name)
    return [
        SpecialToken(table.texts[i], i, i in table.control, i in left, i in right)
        for i in sorted(table.whole - table.bad)
    ]


class SpecialCutter:
    """Cuts texts at the special tokens of one vocabulary.

    Parameters
    ----------
    tokens : iterable of SpecialToken    texts not empty
    """

    def __init__(self, tokens):
        self._groups = {}
        for token in tokens:
            group = self._groups.setdefault(token.text[: PREFIX_SIZES[0]], {})
            group.setdefault(token.text[: PREFIX_SIZES[1]], []).append(token)

    def cut(self, text, trusted):
        """Part `text` into special tokens and plain text.

        Parameters
        ----------
        trusted : True, or list of (start, end)   where control tokens may be: anywhere, or inside these spans of
                                                  `text`, which are ascending and do not touch

        Returns
        -------
        list of int or str    ids, and stretches of plain text (never empty)
        """
        pieces = [(0, len(text))] if text else []
        for token in self._candidates(text, control=trusted is True or bool(trusted)):
            allowed = trusted if token.is_control else True
            pieces = [part for piece in pieces for part in _cut_piece(text, piece, token, allowed)]
        return [piece if isinstance(piece, int) else text[piece[0] : piece[1]] for piece in pieces]

    def _candidates(self, text, control):
        """The tokens that occur in `text`, longest in bytes first, then by id."""
        found = []
        for short, group in self._groups.items():
            if short not in text:
                continue
            for long, tokens in group.items():
                if long in text:
                    found += [t for t in tokens if (control or not t.is_control) and t.text in text]
        return sorted(found, key=lambda token: (-len(token.text.encode()), token.id))


def _cut_piece(text, piece, token, allowed):
    """The parts of one piece around every place where `token` stands and is `allowed`."""
    if isinstance(piece, int):
        yield piece
        return
    start, end = piece
    search = start
    while (at := text.find(token.text, search, end)) >= 0:
        stop = at + len(token.text)
        if allowed is not True and not _covers(allowed, at, stop):
            search = at + 1
            continue
        left = at
        while token.strip_left and left > start and text[left - 1] in C_SPACE:
            left -= 1
        if left > start:
            yield (start, left)
        yield token.id
        while token.strip_right and stop < end and text[stop] in C_SPACE:
            stop += 1
        start = search = stop
    if start < end:
        yield (start, end)


def _covers(spans, start, end):
    i = bisect_right(spans, start, key=lambda span: span[0]) - 1
    return i >= 0 and spans[i][0] <= start and end <= spans[i][1]
