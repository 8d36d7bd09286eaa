"""Text to token ids and back, from the vocabulary of a GGUF file.

Making a Tokenizer checks the file's keys and little more; strings are decoded and merges prepared when text is first
used. A file without a usable vocabulary still gives a Tokenizer, for which only text is an error.
"""

import operator
import threading

from moeengine.errors import ConfigError
from moeengine.tokenizer.model import TextModel, ends_added
from moeengine.tokenizer.pre import pre_tokenizer
from moeengine.tokenizer.source import metadata_of
from moeengine.tokenizer.specials import SpecialCutter, special_tokens
from moeengine.tokenizer.stream import TextStream
from moeengine.tokenizer.vocab import Vocab

FIM_NAMES = ("pre", "suf", "mid", "pad", "rep", "sep")


class Tokenizer:
    """A vocabulary at work. Made by `from_gguf`; may be used from several threads.

    Attributes
    ----------
    n_vocab : int              tokens; 0 when the file does not say
    bos_id, eos_id : int or None
    add_bos, add_eos : bool    what `encode(add_special=True)` adds
    """

    def __init__(self, file, *, force_pre=None):
        if force_pre is not None:
            pre_tokenizer(force_pre, "force_pre")
        self._vocab = Vocab(file)
        self._model = TextModel(self._vocab, force_pre)
        self._cutter = None
        self._lock = threading.Lock()
        self.n_vocab = self._vocab.n_vocab
        self.bos_id = self._vocab.special.get("bos")
        self.eos_id = self._vocab.special.get("eos")
        self.add_bos, self.add_eos = ends_added(self._vocab, force_pre)

    @classmethod
    def from_gguf(cls, file, *, force_pre=None):
        """Read the vocabulary of a model, or of a file that holds nothing else.

        Parameters
        ----------
        file : path of a file, shard or folder; or an open GGUFFile or ModelFile
        force_pre : str, optional    pre-tokenizer to use instead of the one the file names

        Raises
        ------
        GGUFError           the file or one of its tokenizer keys is not sound
        UnsupportedError    `force_pre` is not known
        """
        return cls(metadata_of(file), force_pre=force_pre)

    @property
    def has_text(self):
        """False when the file has no vocabulary to speak of; then only ids go in and out."""
        return self._model.has_text

    @property
    def eot_id(self):
        """The token that ends a turn, or None."""
        return self.special_ids.get("eot")

    @property
    def fim_ids(self):
        """Fill-in-the-middle tokens there are: "pre", "suf", "mid", "pad", "rep", "sep" -> id."""
        special = self.special_ids
        return {name: special[f"fim_{name}"] for name in FIM_NAMES if f"fim_{name}" in special}

    @property
    def eog_ids(self):
        """set of int: every token that ends a generation."""
        if self.has_text:
            return set(self._vocab.table.eog_ids)
        return {
            self.special_ids[name] for name in ("eos", "eot", "eom") if name in self.special_ids
        }

    @property
    def special_ids(self):
        """dict: "bos", "eos", "eot", "eom", "unk", "sep", "pad", "mask", "fim_pre", ... -> id, those there are."""
        return dict(self._vocab.table.special if self.has_text else self._vocab.special)

    def is_special(self, token_id):
        """Whether a token is a control token: hidden in text unless asked for, and never made by plain text.

        Raises
        ------
        ConfigError    no such token
        """
        self._check_id(token_id)
        return self.has_text and token_id in self._vocab.table.control

    def token_text(self, token_id):
        """A token's text as the file spells it, with U+FFFD for what is not UTF-8.

        Raises
        ------
        as `token_bytes`
        """
        self._check_id(token_id)
        self._model.require_strings()
        return self._vocab.tokens[token_id]

    def id_of(self, text):
        """The id of the token that the file spells `text`, or None."""
        return self._vocab.table.ids.get(text) if self.has_text else None

    def require_text(self):
        """Prepare for encoding now, so that a vocabulary that cannot be used is known early.

        Raises
        ------
        UnsupportedError    the file has no vocabulary, or one of a kind or pre-tokenizer that is not known
        GGUFError           merges or scores are missing, or two tokens have one text
        """
        with self._lock:
            if self._cutter is None:
                self._model.prepare()
                self._cutter = SpecialCutter(special_tokens(self._vocab))

    def encode(self, text, add_special=True, parse_special=False):
        """Ids of a text.

        Parameters
        ----------
        text : str
        add_special : bool     add BOS and EOS where the vocabulary wants them
        parse_special : bool   read the texts of control tokens as those tokens; otherwise text never becomes one.
                               User-defined tokens are read either way.

        Returns
        -------
        list of int

        Raises
        ------
        ConfigError         `text` is not a str, or has lone surrogates
        UnsupportedError, GGUFError    as `require_text`
        """
        return self.encode_spans(text, True if parse_special else (), add_special)

    def encode_spans(self, text, trusted, add_special=False):
        """`encode`, with control tokens read only in some places.

        Parameters
        ----------
        trusted : True, or sequence of (start, end)   everywhere, or inside these spans of `text`, which are
                                                      ascending and do not touch
        """
        _check_text(text)
        self.require_text()
        ids = [self.bos_id] if add_special and self.add_bos else []
        after_special = True
        for piece in self._cutter.cut(text, trusted):
            is_id = isinstance(piece, int)
            ids += [piece] if is_id else self._model.encode(piece, after_special)
            after_special = is_id
        if add_special and self.add_eos:
            ids.append(self.eos_id)
        return ids

    def token_bytes(self, token_id, *, special=False):
        """The bytes a token adds to a text; none for a control token unless `special`.

        Raises
        ------
        ConfigError         no such token
        UnsupportedError    the file has no vocabulary, or one of a kind that is not known
        """
        self._check_id(token_id)
        self._model.require_strings()
        table = self._vocab.table
        if token_id in table.control and not special:
            return b""
        if token_id in table.control or token_id in table.bad or token_id in table.user_defined:
            return self._vocab.tokens.raw(token_id)
        return self._model.piece_bytes(table.texts[token_id], token_id in table.byte_ids)

    def decode(self, ids, *, special=False, at_start=True):
        """Text of ids. Bytes that are no valid UTF-8 come out as U+FFFD.

        Parameters
        ----------
        ids : iterable of int
        special : bool     show control tokens as their text
        at_start : bool    the ids begin a text: the space that encoding put before its first word is dropped.
                           False for ids that continue one.

        Raises
        ------
        as `token_bytes`
        """
        stream = self.stream(special=special, at_start=at_start)
        return "".join([stream.feed(token_id) for token_id in ids]) + stream.flush()

    def stream(self, *, special=False, at_start=True):
        """A decoder that takes ids one by one; parameters and errors as `decode`.

        Returns
        -------
        TextStream    with `feed(id) -> str` and `flush() -> str`
        """
        self._model.require_strings()
        prefixed = self._vocab.table.whole if self._model.adds_space_prefix else None
        return TextStream(self, special, at_start, prefixed)

    def _check_id(self, token_id):
        try:
            index = operator.index(token_id)
        except TypeError:
            raise ConfigError(f"token id: found {token_id!r}, expected an integer") from None
        if index < 0 or self.n_vocab and index >= self.n_vocab:
            raise ConfigError(f"token id: found {index}, expected 0 to {self.n_vocab - 1}")


def _check_text(text):
    if not isinstance(text, str):
        raise ConfigError(f"text: found {type(text).__name__}, expected str")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"text: found a lone surrogate at {error.start}, expected valid Unicode"
        ) from None
