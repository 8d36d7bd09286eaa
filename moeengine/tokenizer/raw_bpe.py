"""BPE over plain UTF-8, as Gemma 4 has it: U+2581 for the space, whole lines as words, `<0xHH>` for the rest."""

import re

from moeengine.tokenizer.byte_bpe import build_bpe, without_spare
from moeengine.tokenizer.roles import byte_of

SPACE = "\u2581"
_LINE_OR_BREAKS = re.compile(r"[^\n]+|\n+")


class RawBPE:
    """Encoder of a BPE vocabulary without byte characters.

    Parameters
    ----------
    vocab : Vocab    with merges
    pre : PreTokenizer
    """

    def __init__(self, vocab, pre):
        self._table = vocab.table
        self._whole_lines = pre.whole_lines
        self._bpe, self._spare = build_bpe(vocab, (), byte_fallback=True)

    def encode(self, text, after_special):
        """Ids of a stretch of plain text; `after_special` changes nothing here.

        Returns
        -------
        list of int
        """
        ids = []
        for match in _LINE_OR_BREAKS.finditer(text.replace(" ", SPACE)):
            word = match.group()
            whole = self._table.ids.get(word) if self._whole_lines and word[0] == "\n" else None
            if whole is None:
                ids += self._bpe.encode(word, add_special_tokens=False).ids
            else:
                ids.append(whole)
        return without_spare(ids, self._spare)


def spaced_bytes(text, is_byte):
    """The bytes of a token that writes U+2581 for the space; a byte token's one byte."""
    byte = byte_of(text) if is_byte else None
    if byte is not None:
        return bytes([byte])
    return text.replace(SPACE, " ").encode()
