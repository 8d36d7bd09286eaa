"""What tokens are for: which never come from plain text, which end a generation, which are matched whole.

Files mark tokens with a type, but not all of them do it well, so stock also goes by well-known texts; so do we.
Source: llama.cpp llama-vocab.cpp, end of impl::load.

One difference: the channel markers of gpt-oss (`<|start|>`, `<|channel|>`, ...) stay control tokens. Stock makes them
user-defined so that they are printed; but user-defined tokens are also read from plain text, and a message could then
open a channel of its own.
"""

from functools import cached_property

import gguf

Kind = gguf.TokenType
EOT_TEXTS = (
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "<EOT>", "_<EOT>",
    "[EOT]", "<\uff5cend\u2581of\u2581sentence\uff5c>", "<end_of_utterance>",
)  # fmt: skip
EOM_TEXTS = ("<|eom_id|>",)
END_TEXTS = (
    *EOT_TEXTS, *EOM_TEXTS, "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "</s>", "[EOS]", "<eos>", "<turn|>",
    "<|tool_response>", "[e~[",
)  # fmt: skip
FIM_TEXTS = {
    "fim_pre": (
        "<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<\uff5cfim\u2581begin\uff5c>", "<PRE>", "\u2581<PRE>",
        "<|code_prefix|>", "<|prefix|>",
    ),
    "fim_suf": (
        "<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<\uff5cfim\u2581hole\uff5c>", "<SUF>", "\u2581<SUF>",
        "<|code_suffix|>", "<|suffix|>",
    ),
    "fim_mid": (
        "<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<\uff5cfim\u2581end\uff5c>", "<MID>", "\u2581<MID>",
        "<|code_middle|>", "<|middle|>",
    ),
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>",),
}  # fmt: skip
CHANNEL_TEXTS = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")
NOT_STRIPPED_AFTER = ("<unk>", "<s>", "<|endoftext|>")  # of the Phi-3 family


class TokenTable:
    """Texts and roles of all tokens.

    Attributes
    ----------
    texts : list of str     text of each token; tokens that are no valid UTF-8 hold lone surrogates
    ids : dict              text -> id
    bad : frozenset of int  tokens whose text matches nothing: empty, or not valid UTF-8
    special : dict          as `Vocab.special`, completed by well-known texts
    control : frozenset     ids that plain text never becomes: control and unknown tokens
    user_defined : frozenset  ids matched whole in any text
    whole : frozenset       both of these
    eog_ids : frozenset     ids that end a generation
    """

    def __init__(self, vocab, texts, ids, bad):
        self.texts, self.ids, self.bad = texts, ids, bad
        self.special = dict(vocab.special)
        self._kinds = vocab.kinds
        self._control = set(self._of_kind(Kind.CONTROL) + self._of_kind(Kind.UNKNOWN))
        self._user_defined = set(self._of_kind(Kind.USER_DEFINED))
        self._settle_names()
        self._eog = self._ends()
        self._settle_exceptions()
        self._user_defined -= self._control
        self.control, self.user_defined = frozenset(self._control), frozenset(self._user_defined)
        self.whole = self.control | self.user_defined
        self.eog_ids = frozenset(self._eog)

    def _of_kind(self, kind):
        return (self._kinds == kind).nonzero()[0].tolist()

    def _named(self, texts):
        return [self.ids[text] for text in texts if text in self.ids]

    def _settle_names(self):
        """Find the special tokens the file does not name, and make all that look like control tokens be some."""
        for name, texts in {"eot": EOT_TEXTS, "eom": EOM_TEXTS, **FIM_TEXTS}.items():
            found = self._named(texts)
            if name not in self.special and found:
                self.special[name] = found[0]
                self._control.add(found[0])
        self._control.update(self._named(END_TEXTS), self._named(CHANNEL_TEXTS))

    def _ends(self):
        names = ("fim_pad", "fim_rep", "fim_sep", "eos", "eot", "eom")
        return {self.special[name] for name in names if name in self.special} | set(
            self._named(END_TEXTS)
        )

    def _settle_exceptions(self):
        """Tokens that end a generation in most vocabularies, but not in those that have certain others."""
        has = {text for text in END_TEXTS if text in self.ids}
        called = has & {"<|call|>", "<|calls|>"}
        if called and has & {"<|return|>", "<|flush|>"} and "<|end|>" in has:
            self._eog.discard(self.ids["<|end|>"])  # parts messages of one answer
        if "</s>" in has and ("<|tool_response>" in has or "<|plamo:eos|>" in self.ids):
            self._eog.discard(self.ids["</s>"])  # an ordinary HTML tag there
            self._control.discard(self.ids["</s>"])

    @cached_property
    def byte_ids(self):
        """Tokens that stand for one byte: id -> byte. Only type BYTE with the text `<0xHH>` counts."""
        return {
            i: byte
            for i in self._of_kind(Kind.BYTE)
            if (byte := byte_of(self.texts[i])) is not None
        }

    def stripped_sides(self, pre, model_name):
        """Special tokens that swallow the white space beside them.

        Files do not carry this; it goes by the pre-tokenizer and `general.name`, as in stock.

        Returns
        -------
        left, right : set of int    ids that swallow what is to their left, to their right
        """
        name = model_name.lower()
        if any(family in pre for family in ("jina-v2-de", "jina-v2-es", "jina-v2-code")):
            return set(self._named(["<mask>"])), set()
        if "phi-3" in name or "phi3" in name:
            kept = set(self._named(NOT_STRIPPED_AFTER))
            return set(), (self.control | self.user_defined | set(self._named(["</s>"]))) - kept
        return set(self._named(["[MASK]"])) if "modern-bert" in name else set(), set()


def byte_of(text):
    """The byte a piece `<0xHH>` stands for; None for any other text."""
    if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
        digits = text[3:5]
        if all(c in "0123456789ABCDEFabcdef" for c in digits):
            return int(digits, 16)
    return None
