"""Writes small vocabulary-only GGUF files for the tests."""

import gguf

from moeengine.tokenizer import Tokenizer
from moeengine.tokenizer.byte_bpe import ALPHABET

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]
KEY = "tokenizer.ggml."


def write_vocab(path, model, tokens, *, kinds=None, merges=None, scores=None, pre=None, keys=None):
    """A GGUF file with a vocabulary and nothing else.

    Parameters
    ----------
    tokens : list of str or bytes
    kinds : list of int      token types; None leaves the key out
    keys : dict              further keys; a short one is put under `tokenizer.ggml.`. int -> UINT32, bool, str

    Returns
    -------
    `path`
    """
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(model)
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    if kinds is not None:
        writer.add_token_types(kinds)
    if merges is not None:
        writer.add_token_merges(merges)
    if scores is not None:
        writer.add_token_scores(scores)
    for key, value in (keys or {}).items():
        add = (
            writer.add_bool
            if isinstance(value, bool)
            else writer.add_string
            if isinstance(value, str)
            else writer.add_uint32
        )
        add(key if "." in key else KEY + key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def write_byte_bpe(path, merges=(), extra=(), **options):
    """A byte-level BPE vocabulary: 256 bytes, the results of `merges`, then `extra`, a list of (text, kind)."""
    tokens = [
        *ALPHABET,
        *("".join(merge.split(" ")) for merge in merges),
        *(text for text, _ in extra),
    ]
    kinds = [NORMAL] * (256 + len(merges)) + [kind for _, kind in extra]
    # a file cannot hold an empty array
    return write_vocab(path, "gpt2", tokens, kinds=kinds, merges=list(merges) or [" "], **options)


def byte_bpe(tmp_path, merges=(), extra=(), pre="gpt-2", **options):
    """A Tokenizer over `write_byte_bpe`."""
    return Tokenizer.from_gguf(
        write_byte_bpe(tmp_path / "vocab.gguf", merges, extra, pre=pre, **options)
    )


def write_spm(path, pieces, extra=(), **options):
    """A SentencePiece vocabulary: <unk> <s> </s>, 256 bytes, `pieces` as (text, score), then `extra` as (text, kind)."""
    tokens = [
        "<unk>",
        "<s>",
        "</s>",
        *BYTE_TOKENS,
        *(text for text, _ in pieces),
        *(text for text, _ in extra),
    ]
    kinds = [
        UNKNOWN,
        CONTROL,
        CONTROL,
        *[BYTE] * 256,
        *[NORMAL] * len(pieces),
        *(kind for _, kind in extra),
    ]
    scores = [0.0] * 259 + [float(score) for _, score in pieces] + [0.0] * len(extra)
    return write_vocab(path, "llama", tokens, kinds=kinds, scores=scores, **options)


def spm(tmp_path, pieces, extra=(), **options):
    """A Tokenizer over `write_spm`."""
    return Tokenizer.from_gguf(write_spm(tmp_path / "vocab.gguf", pieces, extra, **options))
