"""Byte-level BPE, `tokenizer.ggml.model` "gpt2": bytes are written as printable characters, then merged by rank."""

import logging

from moeengine.errors import GGUFError
from moeengine.machine import require_address_space
from moeengine.tokenizer.pre import cut_digits, expand
from moeengine.tokenizer.roles import byte_of

BYTES_A_TOKEN = 450  # and a merge, while the package takes them over; it has no way to say that memory is short
BYTES_A_CHARACTER = 200  # of a text, while the package cuts it

log = logging.getLogger("moeengine")


def byte_alphabet():
    """The character for each byte: itself where it prints, else the next from U+0100 on. Source: GPT-2, encoder.py."""
    prints = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(b) if b in prints else chr(next(others)) for b in range(256)]


ALPHABET = byte_alphabet()
BYTE_OF_CHAR = {char: byte for byte, char in enumerate(ALPHABET)}
_TO_LATIN1 = {ord(char): byte for char, byte in BYTE_OF_CHAR.items()}


def byte_char_bytes(text, is_byte):
    """The bytes of an ordinary token: one a character, or that of a byte token.

    Characters outside the byte alphabet stand for themselves.
    """
    byte = byte_of(text) if is_byte else None
    if byte is not None:
        return bytes([byte])
    if all(char in BYTE_OF_CHAR for char in text):
        return text.translate(_TO_LATIN1).encode("latin-1")
    return b"".join(bytes([BYTE_OF_CHAR[c]]) if c in BYTE_OF_CHAR else c.encode() for c in text)


class ByteBPE:
    """Encoder of a byte-level BPE vocabulary.

    Parameters
    ----------
    vocab : Vocab    with merges
    pre : PreTokenizer
    """

    def __init__(self, vocab, pre):
        self._digits = pre.digits
        self._bpe, self._spare = build_bpe(vocab, ALPHABET, ignore_merges=pre.ignore_merges)
        self._bpe.pre_tokenizer = _splitter(pre)

    def encode(self, text, after_special):
        """Ids of a stretch of plain text; `after_special` changes nothing here.

        Returns
        -------
        list of int
        """
        require_address_space(BYTES_A_CHARACTER * len(text), "tokenizer")
        if self._digits:
            encoding = self._bpe.encode(
                cut_digits(text, self._digits), is_pretokenized=True, add_special_tokens=False
            )
        else:
            encoding = self._bpe.encode(text, add_special_tokens=False)
        return without_spare(encoding.ids, self._spare)


def _splitter(pre):
    from tokenizers import Regex, pre_tokenizers

    splits = [pre_tokenizers.Split(Regex(expand(pattern)), "isolated") for pattern in pre.splits]
    return pre_tokenizers.Sequence(
        [*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )


def build_bpe(vocab, alphabet, **options):
    """Hand the text tokens and merges of a vocabulary to the `tokenizers` package.

    Control tokens are left out, so merging cannot make them. A character of `alphabet` that is no token, and every text
    that merges name but no token has, gets a spare id, so that merging goes the way it does in stock.

    Returns
    -------
    tokenizers.Tokenizer
    dict    spare id -> list of ids to put in its place

    Raises
    ------
    GGUFError    no merges
    """
    from tokenizers import Tokenizer, models

    if vocab.merges is None:
        raise GGUFError(
            f"{vocab.where}: key 'tokenizer.ggml.merges': not found, expected to be present"
        )
    table = vocab.table
    ids = {
        text: i for text, i in table.ids.items() if i not in table.bad and i not in table.control
    }
    missing = [char for char in alphabet if char not in ids]
    if missing:
        log.info("%s: %d of the 256 bytes have no token and are dropped", vocab.where, len(missing))
    require_address_space(BYTES_A_TOKEN * (len(ids) + len(vocab.merges)), "tokenizer")
    merges = _pairs(vocab.merges.tolist())
    control = {table.texts[i] for i in table.control}
    for text in control:
        for cut in range(1, len(text)):
            merges.pop((text[:cut], text[cut:]), None)
    spare = {}
    _add_spare(ids, spare, missing, vocab.n_vocab)
    if not all(l in ids and r in ids and l + r in ids for l, r in merges):  # which the package may not survive
        merges = [pair for pair in merges if all(pair) and control.isdisjoint(pair)]
        _add_spare(ids, spare, (text for l, r in merges for text in (l, r, l + r)), vocab.n_vocab)
    return Tokenizer(models.BPE(ids, list(merges), **options)), spare


def _add_spare(ids, spare, texts, n_vocab):
    """Give each text without an id a spare one, which stands for the tokens of its characters."""
    for text in texts:
        if text not in ids:
            spare_id = n_vocab + len(spare)
            spare[spare_id] = [ids[char] for char in text if ids.get(char, n_vocab) < n_vocab]
            ids[text] = spare_id


def without_spare(ids, spare):
    """`ids` with what spare ids stand for in their places."""
    if not spare or spare.keys().isdisjoint(ids):
        return ids
    return [real for i in ids for real in spare.get(i, (i,))]


def _pairs(merges):
    """The two halves of each merge, in order, as keys of a dict; parted at the first space after the first character."""
    pairs = [tuple(merge.split(" ")) for merge in merges]
    if any(len(pair) != 2 or not pair[0] for pair in pairs):
        cuts = [merge.find(" ", 1) for merge in merges]
        pairs = [(m[:cut], m[cut + 1 :]) for m, cut in zip(merges, cuts) if cut > 0]
    return dict.fromkeys(pairs)
