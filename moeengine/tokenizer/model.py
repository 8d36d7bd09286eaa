"""Which kind of vocabulary a file has, and the encoder for it; with a clear refusal for the kinds that have none."""

import logging

from moeengine.errors import UnsupportedError
from moeengine.tokenizer.byte_bpe import ByteBPE, byte_char_bytes
from moeengine.tokenizer.pre import PRE_TOKENIZERS, pre_tokenizer
from moeengine.tokenizer.raw_bpe import RawBPE, spaced_bytes
from moeengine.tokenizer.spm import SentencePiece

TEXT_MODELS = ("gemma4", "gpt2", "llama")
NO_TEXT_MODELS = ("none", "no_vocab", "test")  # written by generators of test models
log = logging.getLogger("moeengine")


def pre_name(vocab, force_pre):
    """The pre-tokenizer to go by; "" for none that is named."""
    if vocab.model == "llama":
        return ""
    return force_pre or ("gemma4" if vocab.model == "gemma4" else vocab.pre)


def ends_added(vocab, force_pre):
    """Whether BOS and EOS are put around a text: what the file says, else the habit of its kind of vocabulary.

    A token the file does not name is never added.

    Returns
    -------
    add_bos, add_eos : bool
    """
    row = PRE_TOKENIZERS.get(pre_name(vocab, force_pre))
    add_bos = vocab.add_bos
    if (
        add_bos is None or row is not None and row.whole_lines
    ):  # such files deny BOS and still need it, as in stock
        add_bos = vocab.model == "llama" or row is not None and row.add_bos
    if add_bos and "bos" not in vocab.special and vocab.add_bos:
        log.warning(
            "%s: BOS should be added, but no BOS token is named; none is added", vocab.where
        )
    return add_bos and "bos" in vocab.special, bool(vocab.add_eos) and "eos" in vocab.special


class TextModel:
    """Encoder and token bytes of one vocabulary; the encoder is made by `prepare`.

    Attributes
    ----------
    has_text : bool             the file has a vocabulary of a kind that is known
    adds_space_prefix : bool    a space is put before text at the start and after special tokens
    """

    def __init__(self, vocab, force_pre):
        self._vocab = vocab
        self._pre_name = pre_name(vocab, force_pre)
        self._encoder = None
        self.has_text = vocab.model in TEXT_MODELS and vocab.tokens is not None
        self.adds_space_prefix = vocab.model == "llama" and vocab.add_space_prefix is not False
        row = PRE_TOKENIZERS.get(self._pre_name)
        spaced = vocab.model == "llama" or row is not None and row.raw
        self.piece_bytes = spaced_bytes if spaced else byte_char_bytes

    def require_strings(self):
        """Raise UnsupportedError unless tokens have texts of a known kind."""
        if self.has_text:
            return
        where = self._vocab.where
        if self._vocab.model in NO_TEXT_MODELS or self._vocab.tokens is None:
            raise UnsupportedError(
                f"{where}: the file has no vocabulary, so there is no text; work with token ids"
            )
        raise UnsupportedError(
            f"{where}: found a tokenizer of kind {self._vocab.model!r}, expected one of {', '.join(TEXT_MODELS)}; "
            f"work with token ids"
        )

    def prepare(self):
        """Make the encoder.

        Raises
        ------
        UnsupportedError    no vocabulary, or a kind or pre-tokenizer that is not known
        GGUFError           merges or scores are missing, or two tokens have one text
        """
        self.require_strings()
        vocab = self._vocab
        if vocab.model == "llama":
            self._encoder = SentencePiece(vocab, self.adds_space_prefix)
            return
        name = self._pre_name
        if not name:
            log.warning(
                "%s: no pre-tokenizer is named, so 'default' is used; ids may differ from training",
                vocab.where,
            )
            name = "default"
        row = pre_tokenizer(name, vocab.where)
        self._encoder = RawBPE(vocab, row) if row.raw else ByteBPE(vocab, row)

    def encode(self, text, after_special):
        """Ids of a stretch of plain text, not empty; `after_special`: nothing or a special token precedes it.

        Returns
        -------
        list of int
        """
        return self._encoder.encode(text, after_special)
