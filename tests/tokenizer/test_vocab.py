"""What a file may say about its vocabulary, and what is refused."""

import logging

import gguf
import numpy as np
import pytest

from moeengine.errors import ConfigError, GGUFError, UnsupportedError
from moeengine.loader.gguf_file import open_gguf
from moeengine.tokenizer import Tokenizer
from moeengine.tokenizer.byte_bpe import ALPHABET
from tests.tokenizer.vocabs import (
    BYTE,
    BYTE_TOKENS,
    CONTROL,
    KEY,
    NORMAL,
    UNUSED,
    USER_DEFINED,
    byte_bpe,
    spm,
    write_byte_bpe,
    write_spm,
    write_vocab,
)

SCORES = [(piece, -i) for i, piece in enumerate(("\u2581", "a", "b", "ab", "\u2581ab"))]


def with_array(path, key, values, base=write_byte_bpe, **options):
    """A vocabulary file whose array `key` is replaced by `values` as they are."""
    original = open_gguf(base(path.with_suffix(".base"), **options))
    writer = gguf.GGUFWriter(path, "llama")
    for name, value in original.metadata.items():
        if name == key or name == "general.architecture":
            continue
        if isinstance(value, (np.ndarray, list)) or hasattr(value, "tolist"):
            writer.add_array(name, value.tolist())
        else:
            writer.add_key_value(name, value, original.value_types[name])
    if values is not None:
        if isinstance(values, np.ndarray):
            writer.add_key_value(
                key, values.tolist(), gguf.GGUFValueType.ARRAY, sub_type=VTYPES[values.dtype.name]
            )
        else:
            writer.add_array(key, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


VTYPES = {
    "uint8": gguf.GGUFValueType.UINT8, "int8": gguf.GGUFValueType.INT8, "int64": gguf.GGUFValueType.INT64,
    "float32": gguf.GGUFValueType.FLOAT32, "float64": gguf.GGUFValueType.FLOAT64, "bool": gguf.GGUFValueType.BOOL,
}  # fmt: skip


@pytest.mark.parametrize("key, values, message", [
    ("token_type", [1] * 255, "token_type.*255.*with 256 elements"),
    ("token_type", [1] * 300, "token_type.*300.*with 256 elements"),
    ("token_type", np.ones(256, np.float32), "token_type.*float32.*array of int"),
    ("token_type", ["a"] * 256, "token_type.*strings"),
    ("scores", [0.5] * 255, "scores.*255"),
    ("scores", np.ones(256, bool), "scores"),
    ("scores", [float("nan")] * 256, "scores.*NaN"),
    ("tokens", [1, 2, 3], "tokens.*array of str"),
    ("merges", [1, 2, 3], "merges.*array of str"),
])  # fmt: skip
def test_arrays_of_another_type_or_length_are_refused(tmp_path, key, values, message):
    path = with_array(tmp_path / "bad.gguf", KEY + key, values)
    with pytest.raises(GGUFError, match=f"bad.gguf.*{message}"):
        Tokenizer.from_gguf(path)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int64])
def test_other_integers_for_token_types_are_widened(tmp_path, dtype):
    kinds = np.ones(256, dtype)
    kinds[65] = CONTROL
    tokenizer = Tokenizer.from_gguf(
        with_array(tmp_path / "v.gguf", KEY + "token_type", kinds, pre="gpt-2")
    )
    assert [i for i in range(256) if tokenizer.is_special(i)] == [65]


@pytest.mark.parametrize("dtype", [np.uint8, np.float64])
def test_other_numbers_for_scores_are_widened(tmp_path, dtype):
    scores = np.arange(264).astype(dtype)
    path = with_array(tmp_path / "v.gguf", KEY + "scores", scores, base=write_spm, pieces=SCORES)
    assert Tokenizer.from_gguf(path).encode("ab", add_special=False) == [263]


@pytest.mark.parametrize("name", ["bos", "eos", "eot", "unknown", "padding", "fim_pre"])
@pytest.mark.parametrize("value", [256, 2**32 - 1])
def test_special_ids_out_of_range_are_refused(tmp_path, name, value):
    path = write_byte_bpe(tmp_path / "v.gguf", pre="gpt-2", keys={f"{name}_token_id": value})
    with pytest.raises(GGUFError, match=f"{name}_token_id.*{value}.*0 to 255"):
        Tokenizer.from_gguf(path)


def test_flags_of_another_type_are_refused(tmp_path):
    with pytest.raises(GGUFError, match="add_bos_token.*expected a bool"):
        Tokenizer.from_gguf(
            write_byte_bpe(tmp_path / "v.gguf", pre="gpt-2", keys={"add_bos_token": "yes"})
        )


def test_two_tokens_of_one_text_are_refused(tmp_path):
    tokenizer = byte_bpe(tmp_path, extra=[("xx", NORMAL), ("\x1b[2J", NORMAL), ("\x1b[2J", NORMAL)])
    with pytest.raises(GGUFError, match=r"\\x1b\[2J' at 257 and again at 258"):
        tokenizer.encode("a")


def test_merges_and_scores_have_to_be_there(tmp_path):
    tokens = [chr(c) for c in range(33, 120)]
    with pytest.raises(GGUFError, match="merges.*not found"):
        Tokenizer.from_gguf(write_vocab(tmp_path / "a.gguf", "gpt2", tokens, pre="gpt-2")).encode(
            "a"
        )
    with pytest.raises(GGUFError, match="scores.*not found"):
        Tokenizer.from_gguf(write_vocab(tmp_path / "b.gguf", "llama", tokens)).encode("a")


def test_files_without_text_work_with_ids(tmp_path):
    for model in ("no_vocab", "none", "test"):
        path = write_vocab(
            tmp_path / f"{model}.gguf", model, ["tok_0", "tok_1"], keys={"eos_token_id": 1}
        )
        tokenizer = Tokenizer.from_gguf(path)
        assert tokenizer.n_vocab == 2 and not tokenizer.has_text
        assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.eog_ids, tokenizer.add_bos) == (
            None,
            1,
            {1},
            False,
        )
        assert not tokenizer.is_special(1) and tokenizer.id_of("tok_1") is None
        for call, argument in (
            (tokenizer.encode, "a"),
            (tokenizer.decode, [0]),
            (tokenizer.token_bytes, 0),
        ):
            with pytest.raises(UnsupportedError, match="no vocabulary.*token ids"):
                call(argument)


def test_the_size_without_tokens_comes_from_the_model(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "v.gguf", "llama")
    writer.add_vocab_size(1234)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    tokenizer = Tokenizer.from_gguf(tmp_path / "v.gguf")
    assert tokenizer.n_vocab == 1234 and not tokenizer.has_text


def test_unknown_kinds_are_refused_when_text_is_used(tmp_path):
    tokenizer = Tokenizer.from_gguf(write_vocab(tmp_path / "v.gguf", "rwkv", ["a", "b"]))
    assert tokenizer.n_vocab == 2
    for call in (lambda: tokenizer.require_text(), lambda: tokenizer.decode([0])):
        with pytest.raises(UnsupportedError, match="'rwkv'.*gemma4, gpt2, llama"):
            call()


def test_an_unknown_pre_tokenizer_leaves_ids_and_decoding(tmp_path):
    path = write_byte_bpe(tmp_path / "v.gguf", ["a b"], pre="future-model")
    tokenizer = Tokenizer.from_gguf(path)
    assert tokenizer.decode([256, 65]) == "abA"
    with pytest.raises(UnsupportedError, match="future-model"):
        tokenizer.encode("ab")
    assert Tokenizer.from_gguf(path, force_pre="gpt-2").encode("ab") == [256]
    with pytest.raises(UnsupportedError, match="force_pre.*'nonsense'"):
        Tokenizer.from_gguf(path, force_pre="nonsense")


def test_a_missing_pre_tokenizer_warns(tmp_path, caplog):
    tokenizer = byte_bpe(tmp_path, pre=None)
    with caplog.at_level(logging.WARNING, "moeengine"):
        assert tokenizer.encode("a")
    assert "no pre-tokenizer is named" in caplog.text


def test_no_bos_is_made_up(tmp_path):
    tokenizer = byte_bpe(tmp_path, pre="llama-bpe")  # which adds BOS by habit
    assert tokenizer.bos_id is None and tokenizer.eos_id is None and not tokenizer.add_bos
    assert tokenizer.encode("a") == [97]
    tokenizer = byte_bpe(tmp_path, keys={"add_bos_token": True, "add_eos_token": True})
    assert tokenizer.encode("a") == [97]


def test_bos_and_eos_follow_the_file_then_the_kind(tmp_path):
    ids = {"bos_token_id": 256, "eos_token_id": 257}
    extra = [("<s>", CONTROL), ("</s>", CONTROL)]
    assert byte_bpe(tmp_path, extra=extra, keys=ids).encode("a") == [97]
    assert byte_bpe(tmp_path, extra=extra, pre="llama-bpe", keys=ids).encode("a") == [256, 97]
    assert byte_bpe(
        tmp_path, extra=extra, pre="llama-bpe", keys={**ids, "add_bos_token": False}
    ).encode("a") == [97]
    assert byte_bpe(
        tmp_path, extra=extra, keys={**ids, "add_bos_token": True, "add_eos_token": True}
    ).encode("a") == [256, 97, 257]
    assert spm(tmp_path, SCORES).encode("ab") == [1, 263]
    assert spm(tmp_path, SCORES, keys={"add_bos_token": False}).encode("ab") == [263]
    assert spm(tmp_path, SCORES).encode("") == [1]
    assert spm(tmp_path, SCORES).encode("", add_special=False) == []


def test_end_of_generation_tokens(tmp_path):
    extra = [
        ("<|im_end|>", NORMAL),
        ("<|endoftext|>", CONTROL),
        ("x", NORMAL),
        ("<|file_sep|>", CONTROL),
        ("<think>", USER_DEFINED),
    ]
    tokenizer = byte_bpe(
        tmp_path, extra=extra[:2] + [("zz", NORMAL)] + extra[3:], keys={"eos_token_id": 258}
    )
    assert tokenizer.eog_ids == {256, 257, 258, 259}
    assert tokenizer.eot_id == 256 and tokenizer.is_special(
        256
    )  # its text says what its type does not
    assert tokenizer.fim_ids == {"sep": 259}
    assert not tokenizer.is_special(260)


FAMILIES = {  # control tokens, named roles, and those that end a generation in stock llama.cpp
    "glm4": ("<|endoftext|> [MASK] [gMASK] <sop> <eop> <|user|> <|observation|> </think>", {"eos": 0, "eot": 5, "bos": 0},
             "<|endoftext|> <|user|>"),
    "minimax-m2": ("]!p~[ <fim_prefix> <fim_pad> <reponame> <filename> ]~!b[ ]~b] [e~[", {"bos": 5, "eos": 7},
                   "<fim_pad> <reponame> [e~["),
    "bailingmoe2": ("<|startoftext|> <|endoftext|> [CLS] [gMASK] <|role_end|>", {"bos": 0, "eos": 4}, "<|endoftext|> <|role_end|>"),
    "hunyuan": ("<|startoftext|> <|bos|> <|eos|> <|pad|> <|endoftext|>", {"bos": 1, "eos": 2}, "<|eos|> <|endoftext|>"),
    "qwen2": ("<|userprompt|> <|response|> <|endofresponse|> <|im_end|> [PAD]", {"eos": 2}, "<|endofresponse|> <|im_end|> [PAD]"),
    "refact": ("<|end_of_text|> <fim_prefix> <fim_pad> <|start_of_role|> <|end_of_role|>", {"eos": 0}, "<|end_of_text|> <fim_pad>"),
    "exaone-moe": ("[PAD] [BOS] [EOS] [UNK] <|endoftext|> <|endofturn|> [|endofturn|]", {"bos": 1, "eos": 6},
                   "[PAD] [EOS] <|endoftext|> [|endofturn|]"),
}  # fmt: skip


@pytest.mark.parametrize("pre", FAMILIES)
@pytest.mark.parametrize("kind", [CONTROL, USER_DEFINED])
def test_what_ends_a_generation_in_families_of_models(tmp_path, pre, kind):
    names, roles, ends = FAMILIES[pre]
    keys = {f"{role}_token_id": 256 + i for role, i in roles.items()}
    tokenizer = byte_bpe(tmp_path, extra=[(name, kind) for name in names.split()], pre=pre, keys=keys)
    assert {tokenizer.token_text(i) for i in tokenizer.eog_ids} == set(ends.split())
    assert not tokenizer.add_bos


def test_the_end_of_a_harmony_message_does_not_end_the_answer(tmp_path):
    names = ("<|return|>", "<|call|>", "<|end|>", "<|start|>", "<|channel|>", "<|message|>")
    tokenizer = byte_bpe(
        tmp_path, extra=[(name, CONTROL) for name in names], keys={"eos_token_id": 256}
    )
    assert tokenizer.eog_ids == {256, 257}
    assert all(tokenizer.is_special(i) for i in range(256, 262))
    assert (
        tokenizer.decode(tokenizer.encode("<|start|>a<|message|>b<|end|>", parse_special=True))
        == "ab"
    )
    assert max(tokenizer.encode("".join(names))) < 256
    without = byte_bpe(tmp_path, extra=[("<|end|>", CONTROL)])
    assert without.eog_ids == {256}


def test_pieces_that_only_look_like_bytes_are_text(tmp_path):
    odd = ["<0x-1>", "<0xZZ>", "<0x1FF>", "<0x >"]
    tokenizer = spm(tmp_path, SCORES, [(text, BYTE) for text in odd])
    assert [tokenizer.token_bytes(264 + i) for i in range(4)] == [text.encode() for text in odd]
    assert (
        tokenizer.decode(tokenizer.encode("<0x-1> <0xZZ> <0x1FF> <0x41>"))
        == "<0x-1> <0xZZ> <0x1FF> <0x41>"
    )
    assert tokenizer.token_bytes(3 + 0xE2) == b"\xe2"


def test_tokens_that_are_not_utf8_keep_their_bytes(tmp_path):
    tokens = [*BYTE_TOKENS, b"\xff\xfe", b"\xe2\x96", "\ufffd", "", "a\x00b", "a", "\u2581"]
    kinds = [BYTE] * 256 + [NORMAL] * 7
    tokenizer = Tokenizer.from_gguf(
        write_vocab(tmp_path / "v.gguf", "llama", tokens, kinds=kinds, scores=[0.0] * 263)
    )
    assert [tokenizer.token_bytes(i) for i in range(256, 261)] == [
        b"\xff\xfe",
        b"\xe2\x96",
        "\ufffd".encode(),
        b"",
        b"a\x00b",
    ]
    text = "\ufffd a\x00b"
    ids = tokenizer.encode(text, add_special=False)
    assert 258 in ids and not {256, 257, 259} & set(ids) and tokenizer.decode(ids) == text


def test_a_byte_without_a_token_is_dropped_as_in_stock(tmp_path):
    tokens = ["a", "b", "ab"]
    tokenizer = Tokenizer.from_gguf(
        write_vocab(tmp_path / "v.gguf", "gpt2", tokens, merges=["a b"], pre="gpt-2")
    )
    assert tokenizer.encode("acb ab") == [0, 1, 2]  # and "a" and "b" stay apart


def test_a_merge_whose_result_is_no_token(tmp_path, capfd):
    """One that the package would end with a panic, which is no Exception."""
    tokens = [*ALPHABET, "\u0120t", "he", "Kthe"]
    path = write_vocab(tmp_path / "v.gguf", "gpt2", tokens, merges=["\u0120 t", "h e", "\u0120t he"], pre="gpt-2")
    tokenizer = Tokenizer.from_gguf(path)
    assert tokenizer.encode(" the") == list(b" the")  # merged to what is no token, so its characters, as in stock
    assert tokenizer.encode(" the t") == [*b" the", 256] and tokenizer.encode("he") == [257]
    assert capfd.readouterr().err == ""


def test_merges_by_way_of_no_token(tmp_path):
    merges = ["b c", "a bc", "a b", "x y", "xy z"]
    tokens = ["a", "b", "c", "x", "y", "z", "abc", "xyz"]
    tokenizer = Tokenizer.from_gguf(
        write_vocab(tmp_path / "v.gguf", "gpt2", tokens, merges=merges, pre="gpt-2")
    )
    assert tokenizer.encode("abcxyzbcxy") == [6, 7, 1, 2, 3, 4]


def test_unused_tokens_are_read_and_written(tmp_path):
    tokenizer = spm(tmp_path, SCORES, [("ba", UNUSED)])
    assert tokenizer.decode(tokenizer.encode("ba")) == "ba"


def test_ids_that_are_no_token_are_refused(tmp_path):
    tokenizer = byte_bpe(tmp_path)
    for call in (
        tokenizer.token_bytes,
        tokenizer.is_special,
        tokenizer.token_text,
        lambda i: tokenizer.decode([i]),
    ):
        for wrong in (-1, 256, 2**40):
            with pytest.raises(ConfigError, match=f"{wrong}, expected 0 to 255"):
                call(wrong)
        with pytest.raises(ConfigError, match="'a', expected an integer"):
            call("a")


def test_text_that_is_not_unicode_is_refused(tmp_path):
    tokenizer = byte_bpe(tmp_path)
    with pytest.raises(ConfigError, match="surrogate at 1"):
        tokenizer.encode("a\ud800")
    with pytest.raises(ConfigError, match="found bytes"):
        tokenizer.encode(b"a")


def test_a_llama_file_without_tokens_has_no_text(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "v.gguf", "llama")
    writer.add_tokenizer_model("llama")
    writer.add_vocab_size(32000)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    tokenizer = Tokenizer.from_gguf(tmp_path / "v.gguf")
    assert not tokenizer.has_text and tokenizer.bos_id is None and not tokenizer.add_bos
    with pytest.raises(UnsupportedError, match="no vocabulary"):
        tokenizer.encode("a")
