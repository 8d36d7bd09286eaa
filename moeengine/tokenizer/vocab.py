"""The vocabulary of a GGUF file: what its `tokenizer.ggml.*` keys say, checked.

Reading a Vocab is cheap: strings are decoded when text is first used (`table`). What tokens mean to each other
(control, end of generation, fill in the middle) is settled in `roles`.
"""

from functools import cached_property

import gguf
import numpy as np

from moeengine.errors import GGUFError
from moeengine.loader.messages import escaped, shown_path
from moeengine.tokenizer.roles import TokenTable

KEYS = gguf.Keys.Tokenizer
Kind = gguf.TokenType
SPM_DEFAULTS = {"bos": 1, "eos": 2, "unk": 0}
_SPECIAL_KEYS = {
    "bos": (KEYS.BOS_ID,), "eos": (KEYS.EOS_ID,), "eot": (KEYS.EOT_ID,), "eom": (KEYS.EOM_ID,),
    "unk": (KEYS.UNK_ID,), "sep": (KEYS.SEP_ID,), "pad": (KEYS.PAD_ID,), "mask": (KEYS.MASK_ID,),
    "fim_pre": (KEYS.FIM_PRE_ID, KEYS.PREFIX_ID), "fim_suf": (KEYS.FIM_SUF_ID, KEYS.SUFFIX_ID),
    "fim_mid": (KEYS.FIM_MID_ID, KEYS.MIDDLE_ID), "fim_pad": (KEYS.FIM_PAD_ID,),
    "fim_rep": (KEYS.FIM_REP_ID,), "fim_sep": (KEYS.FIM_SEP_ID,),
}  # fmt: skip


class Vocab:
    """What a file says about its tokens.

    Attributes
    ----------
    where : str              the file's path, for messages
    model : str              `tokenizer.ggml.model`; "none" when the file has none
    pre : str                `tokenizer.ggml.pre`; "" when the file has none
    n_vocab : int            tokens; 0 when the file does not say
    tokens, merges : StringArray or None
    scores : float32 (V,) or None
    kinds : int32 (V,)       gguf.TokenType of each token
    special : dict           "bos", "eos", "eot", ... -> id; only those the file names
    add_bos, add_eos : bool or None   None: the file does not say
    add_space_prefix : bool or None

    Raises
    ------
    GGUFError    a key has another type, length or range than its meaning allows
    """

    def __init__(self, file):
        self.where = shown_path(file.path)
        self.model = file.get_str(KEYS.MODEL, "none")
        self.pre = file.get_str(KEYS.PRE, "")
        self.name = file.get_str(gguf.Keys.General.NAME, "")
        self.tokens = file.get_array(KEYS.LIST, None, kind="str")
        if self.tokens is not None and not len(self.tokens):
            file.refuse(KEYS.LIST, self.tokens, "at least one token")
        self.n_vocab = _count(file, self.tokens)
        self.merges = file.get_array(KEYS.MERGES, None, kind="str")
        self.scores = _scores(file, self.tokens)
        self.kinds = _kinds(file, self.tokens)
        self.special = _special_ids(file, self)
        self.add_bos = file.get_bool(KEYS.ADD_BOS, None)
        self.add_eos = file.get_bool(KEYS.ADD_EOS, None)
        self.add_space_prefix = file.get_bool(KEYS.ADD_PREFIX, None)

    @cached_property
    def table(self):
        """Every token's text and role; decoded at first use.

        Raises
        ------
        GGUFError    there is no token list, or two tokens have the same text
        """
        if self.tokens is None:
            raise GGUFError(f"{self.where}: key '{KEYS.LIST}': not found, expected to be present")
        texts = self.tokens.tolist()
        exact = dict(_repaired(self.tokens, texts))
        for i, text in exact.items():
            texts[i] = text
        ids = {text: i for i, text in enumerate(texts)}
        if len(ids) != len(texts):
            self._refuse_duplicate(texts, ids)
        return TokenTable(self, texts, ids, frozenset(exact))

    def _refuse_duplicate(self, texts, ids):
        first = next(i for i, text in enumerate(texts) if ids[text] != i)
        raise GGUFError(
            f"{self.where}: key '{KEYS.LIST}': found the text '{escaped(texts[first])}' at {first} and again at "
            f"{ids[texts[first]]}, expected every token once"
        )


def _repaired(tokens, texts):
    """Texts that cannot stand for their token: (id, stand-in that no valid text equals).

    Invalid bytes become lone surrogates. An empty token gets a stand-in of its own.
    """
    for i, text in enumerate(texts):
        if not text:
            yield i, f"\udc00{i}"
        elif "\ufffd" in text:
            exact = tokens.raw(i).decode("utf-8", "surrogateescape")
            if exact != text:
                yield i, exact


def _count(file, tokens):
    if tokens is not None:
        return len(tokens)
    architecture = file.get_str(gguf.Keys.General.ARCHITECTURE, "")
    count = file.get_int(gguf.Keys.LLM.VOCAB_SIZE.format(arch=architecture), 0, lo=0, hi=2**31 - 1)
    embedding = file.tensors.get("token_embd.weight")
    return count or (embedding.shape[0] if embedding is not None and embedding.shape else 0)


def _scores(file, tokens):
    if tokens is None:
        return None
    scores = file.get_array(KEYS.SCORES, None, kind="float", length=len(tokens))
    if scores is None:
        return None
    scores = scores.astype(np.float32)
    if np.isnan(scores).any():
        raise GGUFError(
            f"{shown_path(file.path)}: key '{KEYS.SCORES}': found NaN at {int(np.isnan(scores).argmax())}, "
            f"expected numbers"
        )
    return scores


def _kinds(file, tokens):
    if tokens is None:
        return np.zeros(0, np.int32)
    kinds = file.get_array(KEYS.TOKEN_TYPE, None, kind="int", length=len(tokens))
    return np.full(len(tokens), Kind.NORMAL, np.int32) if kinds is None else kinds.astype(np.int32)


def _special_ids(file, vocab):
    top = vocab.n_vocab - 1 if vocab.n_vocab else 2**31 - 1
    found = {}
    for name, keys in _SPECIAL_KEYS.items():
        for key in keys:
            value = file.get_int(key, None, lo=0, hi=top)
            if value is not None:
                found.setdefault(name, value)
    if vocab.model == "llama":
        for name, default in SPM_DEFAULTS.items():  # kept only where the token can be nothing else
            if default < len(vocab.kinds) and vocab.kinds[default] in (Kind.CONTROL, Kind.UNKNOWN):
                found.setdefault(name, default)
    return found
