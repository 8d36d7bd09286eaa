r"""How text is cut into words before merging: one row for every `tokenizer.ggml.pre` that is known.

A row holds oniguruma patterns that are applied in turn; of each, every match and every gap between matches becomes
a piece, and the next pattern sees the pieces one by one. `\p{L}` and the like stand for the ranges of
`unicode_tables`. Two things keep the patterns linear on long runs of one kind of character: runs are taken
possessively wherever giving back cannot help, and digit groups that must be counted from the right
are cut in Python (`digits`).

The patterns are those the models were trained with, as far as stock keeps them.
Source: llama.cpp llama-vocab.cpp (names, patterns, flags) and unicode.cpp (what its own matcher makes of them).
"""

import difflib
import re
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

from moeengine.errors import UnsupportedError
from moeengine.tokenizer.unicode_tables import ranges

_SUFFIXES = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_LINES = r"(?:[^\S\r\n]*+[\r\n]++)++"  # the longest run of white space that ends in a line break
_BLANKS = r"\s+(?!\S)|\s+"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_MARKED_WORD = r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+"
_OTHER = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_OTHER_SLASH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_PUNCT_WORD = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
)
_KANA_HAN = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_HAN = (
    "\u4e00-\u9fff\u3400-\u4dbf\U00020000-\U0002a6df\U0002a700-\U0002b73f\U0002b740-\U0002b81f"
    "\U0002b820-\U0002ceaf\U0002ceb0-\U0002ebef\uf900-\ufaff\U0002f800-\U0002fa1f"
)

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_SUFFIXES}|{_WORD}|\p{{N}}{{1,3}}|{_OTHER}|{_LINES}|{_BLANKS}"
_QWEN2 = rf"{_SUFFIXES}|{_WORD}|\p{{N}}|{_OTHER}|{_LINES}|{_BLANKS}"
_CASED_TAIL = rf"|\p{{N}}{{1,3}}|{_OTHER_SLASH}|{_LINES}|{_BLANKS}"


def _cased(letters):
    """A word that may start upper case and ends lower case, or is all upper case.

    Only A-Z and a-z count as cased; every other letter fits both halves. The lower half needs one character that is not
    A-Z, so: an upper run followed by a-z, or else up to the last letter outside A-Z, or else A-Z alone.
    """
    upper, lower, other = (rf"[{letters}&&[^{drop}]]" for drop in ("a-z", "A-Z", "A-Za-z"))
    words = rf"(?:{upper}*+[a-z]{lower}*+|(?:[A-Z]*+{other}++)++|[A-Z]++)"
    return rf"[^\r\n\p{{L}}\p{{N}}]?{words}"


_CASED = _cased(r"\p{L}")
_DEEPSEEK_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af"
    "\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1"
    "\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd"
    "\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d"
    "\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4"
    "\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec"
    "\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128"
    "\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b"
    "\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787"
    "\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a"
    "\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2"
    "\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
# Both start at U+0800 and so take in spaces, which stock's matcher never sees as themselves.
_DEEPSEEK_HAN = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff&&\\S]+"
_DEEPSEEK_PUNCT = "[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3001\u3002]+"
_AFMOE_SCRIPTS = (  # the third range starts below the compatibility ideographs in stock as well
    "[\u4e00-\u9fff\u3400-\u4dbf\u8c48-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e40-\u0e7f"
    "\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+"
)
_YOUTU_SCRIPTS = (
    "[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f"
    "\ufe30-\ufe4f]+|[\u3105-\u312f]+|" + _KANA_HAN
)
_NOT_BLOOM_PUNCT = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"


@dataclass(frozen=True)
class PreTokenizer:
    """One way of cutting text.

    Attributes
    ----------
    splits : tuple of str     patterns, applied in turn
    digits : "", "afmoe" or "superbpe"   digit groups cut before the patterns (see `cut_digits`)
    ignore_merges : bool      a word that is a token is that token, whatever the merges say
    add_bos : bool            BOS is added unless the file says otherwise
    raw : bool                words are UTF-8 with U+2581 for the space, not byte characters; cut at line breaks only
    whole_lines : bool        with `raw`: a run of line breaks that is a token is that token
    """

    splits: tuple = ()
    digits: str = ""
    ignore_merges: bool = False
    add_bos: bool = False
    raw: bool = False
    whole_lines: bool = False


_STARCODER = PreTokenizer((r"\p{N}", _GPT2))
_DEEPSEEK3 = PreTokenizer(
    (r"\p{N}{1,3}", _KANA_HAN, rf"{_PUNCT_WORD}| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_LINES}|{_BLANKS}")
)
_MARKED_SUFFIXED = rf"{_MARKED_WORD}{_SUFFIXES}?"

_ROWS = (
    ("default", PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"))),
    (
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
        PreTokenizer((_LLAMA3,), ignore_merges=True, add_bos=True),
    ),
    ("minicpm5", PreTokenizer(
        (r"\p{N}{1,3}", rf"{_SUFFIXES}|{_WORD}|\p{{N}}+|{_OTHER}|{_LINES}|{_BLANKS}"),
        ignore_merges=True,
    )),
    ("dbrx smaug-bpe chatglm-bpe", PreTokenizer((_LLAMA3,))),
    ("glm4 glm5", PreTokenizer((_LLAMA3,), ignore_merges=True)),
    ("jais-2", PreTokenizer((
        rf"{_SUFFIXES}|{_WORD}|\p{{N}}{{1,3}}|{_OTHER}|{_LINES}|\s{{512}}(?!\S)|\s{{256}}(?!\S)|\s{{128}}(?!\S)"
        r"|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}",
    ))),
    ("deepseek-llm", PreTokenizer((
        r"[\r\n]", rf"\s?[{_DEEPSEEK_LETTERS}]+", rf"\s?{_DEEPSEEK_PUNCT}", r"(?<!\s)\s++\z", _DEEPSEEK_HAN, r"\p{N}+",
    ))),
    ("deepseek-coder", PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_HAN, r"\p{N}"))),
    ("deepseek-v3 hunyuan-dense hy_v4 joyai-llm", _DEEPSEEK3),
    ("spark2_5", PreTokenizer((
        r"\p{N}{1,3}", _KANA_HAN, rf"{_PUNCT_WORD}| ?[\p{{P}}\p{{S}}]+|[\r\n]|{_BLANKS}", r"\p{N}",
    ))),
    ("youtu", PreTokenizer(
        (_YOUTU_SCRIPTS, rf"{_MARKED_SUFFIXED}|\p{{N}}|{_OTHER_SLASH}|{_LINES}|{_BLANKS}"), ignore_merges=True,
    )),
    ("falcon", PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]"))),
    ("starcoder refact command-r smollm codeshell exaone minerva-7b mellum2", _STARCODER),
    (
        "gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum modern-bert jina-v1-en jina-v2-code "
        "roberta-bpe mpt olmo jais trillion granite-docling exaone4",
        PreTokenizer((_GPT2,)),
    ),
    ("stablelm2 qwen2 deepseek-r1-qwen kormo f2llmv2 megrez hunyuan solar-open grok-2", PreTokenizer((_QWEN2,))),
    ("qwen35", PreTokenizer((
        rf"{_SUFFIXES}|{_MARKED_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_LINES}|{_BLANKS}",
    ))),
    ("poro-chat bloom gpt3-finnish", PreTokenizer((_NOT_BLOOM_PUNCT,))),
    ("viking", PreTokenizer((_NOT_BLOOM_PUNCT, r"\p{N}"))),
    ("tekken", PreTokenizer(
        (rf"{_CASED}|\p{{N}}|{_OTHER_SLASH}|{_LINES}|{_BLANKS}",), ignore_merges=True, add_bos=True,
    )),
    ("gpt-4o llama4 kanana2 talkie minimax-m2", PreTokenizer((_CASED + f"{_SUFFIXES}?" + _CASED_TAIL,))),
    ("granite-embed-multi-97m", PreTokenizer(
        (_cased(r"\p{L}\p{M}") + f"{_SUFFIXES}?" + _CASED_TAIL,), ignore_merges=True,
    )),
    ("chameleon", PreTokenizer(
        (
            "<sentinel:[0-9]+>", "IMGIMG[A-I]{1,4}Z", r"[\t\n]|    |  ", r"\p{N}", r"[\p{P}!-/:-@\[-`{-~]", _GPT2,
        ),
        add_bos=True,
    )),
    ("tiny_aya cohere2moe", PreTokenizer((_MARKED_SUFFIXED + _CASED_TAIL,), digits="afmoe")),
    ("kimi-k2", PreTokenizer((
        rf"[{_HAN}]+|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}&&[^{_HAN}]]+{_SUFFIXES}?|\p{{N}}{{1,3}}|{_OTHER}|{_LINES}|{_BLANKS}",
    ))),
    ("superbpe", PreTokenizer(digits="superbpe")),
    ("bailingmoe bailingmoe2 llada-moe", PreTokenizer((
        rf"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|{_WORD}|\p{{N}}|{_OTHER}|{_LINES}|{_BLANKS}",
    ))),
    ("seed-coder", PreTokenizer((
        rf"{_SUFFIXES}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_LINES}|{_BLANKS}",
    ))),
    ("ufakzeka", PreTokenizer((rf"{_WORD}|\p{{N}}|{_OTHER}|{_LINES}|{_BLANKS}",))),
    ("afmoe", PreTokenizer(
        (_AFMOE_SCRIPTS, rf"{_PUNCT_WORD}| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_LINES}|{_BLANKS}"), digits="afmoe",
    )),
    ("laguna", PreTokenizer((r"[^\n]+|\n+", _QWEN2))),
    ("exaone-moe", PreTokenizer((
        rf"{_SUFFIXES}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
        rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]?|{_LINES}|{_BLANKS}",
    ))),
    ("gemma4 granite-embed-multi-311m", PreTokenizer(raw=True, whole_lines=True, add_bos=True)),
    ("sarvam-moe", PreTokenizer(raw=True)),
)  # fmt: skip
PRE_TOKENIZERS = {name: row for names, row in _ROWS for name in names.split()}


def pre_tokenizer(name, where):
    """The row of a `tokenizer.ggml.pre`.

    Raises
    ------
    UnsupportedError    no such row; lists those there are. `where` starts the message
    """
    row = PRE_TOKENIZERS.get(name)
    if row is None:
        similar = difflib.get_close_matches(name, PRE_TOKENIZERS, n=3, cutoff=0.6)
        hint = f" (similar: {', '.join(similar)})" if similar else ""
        raise UnsupportedError(
            f"{where}: found the pre-tokenizer {name!r}, which is not known{hint}; force one of these if it cuts text "
            f"the same way, or work with token ids: {', '.join(sorted(PRE_TOKENIZERS))}"
        )
    return row


@cache
def expand(pattern):
    r"""A pattern with `\p{..}` written out as ranges, in brackets where it stands outside a class."""
    depth, parts = 0, []
    for token in re.findall(r"\\p\{[A-Z]\}|\\.|.", pattern, re.DOTALL):
        if token.startswith(r"\p{"):
            letters = _class(token[3])
            parts.append(letters if depth else f"[{letters}]")
            continue
        depth += (token == "[") - (token == "]")
        parts.append(token)
    return "".join(parts)


def _class(category):
    """Ranges of a category as the inside of a bracket expression, for oniguruma and `re` alike."""
    return "".join(f"{re.escape(chr(a))}-{re.escape(chr(b))}" for a, b in ranges(category))


@cache
def _number_run():
    return re.compile(f"[{_class('N')}]+")


def cut_digits(text, kind):
    """Cut text at digit groups, which are counted from the right of a run of digits.

    kind "superbpe": a run of numbers is cut off from its surroundings, then 0-9 in it by threes.
    kind "afmoe": numbers by threes, the first group of a run short or full; what precedes a run stays with its
    first group, as in stock, and is parted by the patterns that follow.

    Returns
    -------
    list of str    pieces in order; together they are `text`
    """
    cuts = [0]
    for run in _number_run().finditer(text):
        start, end = run.span()
        if kind == "afmoe":
            cuts += range(start + ((end - start) % 3 or 3), end + 1, 3)
            continue
        cuts.append(start)
        for digits in re.finditer("[0-9]+", run.group()):
            first, last = start + digits.start(), start + digits.end()
            cuts += range(first + (last - first) % 3, last, 3)
        cuts.append(end)
    cuts.append(len(text))
    return [text[a:b] for a, b in pairwise(cuts) if a < b]
