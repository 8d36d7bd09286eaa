"""Special tokens in texts: where they are read, where not, what they swallow."""

import pytest

from tests.tokenizer.vocabs import CONTROL, NORMAL, UNKNOWN, USER_DEFINED, byte_bpe, spm

EXTRA = [
    ("<|im_start|>", CONTROL),
    ("<|im_end|>", CONTROL),
    ("<think>", USER_DEFINED),
    ("  ", USER_DEFINED),
    ("<u>", UNKNOWN),
]
START, END, THINK, SPACES, UNK = range(256, 261)
PIECES = [
    (piece, -i)
    for i, piece in enumerate(("\u2581", "G", "\u2581G", "<", "s", ">", "<s", "s>", "/", "</", "H"))
]


def test_control_tokens_are_read_only_when_asked_for(tmp_path):
    tokenizer = byte_bpe(tmp_path, extra=EXTRA)
    text = "<|im_start|>a<think>b<|im_end|><u>"
    ids = tokenizer.encode(text, parse_special=True)
    assert ids == [START, 97, THINK, 98, END, UNK]
    plain = tokenizer.encode(text)
    assert THINK in plain and not {START, END, UNK} & set(plain)
    assert tokenizer.decode(plain) == text
    assert tokenizer.decode(ids) == "a<think>b" and tokenizer.decode(ids, special=True) == text


def test_merging_never_makes_a_control_token(tmp_path):
    merges = ["< s", "<s >", "/ s", "< /s"]
    tokenizer = byte_bpe(tmp_path, merges[:1] + merges[2:], extra=[("<s>", CONTROL)], pre="bloom")
    assert tokenizer.encode("<s>") == [256, 62]
    tokenizer = spm(tmp_path, PIECES)
    assert not {0, 1, 2} & set(tokenizer.encode("<s> </s> <unk>", add_special=False))
    assert tokenizer.decode(tokenizer.encode("<s> </s> <unk>")) == "<s> </s> <unk>"


def test_every_special_text_is_plain_without_asking(tmp_path):
    extra = EXTRA[:2] + [("<|eot_id|>", NORMAL), ("<|fim_prefix|>", NORMAL), ("[EOS]", NORMAL)]
    tokenizer = byte_bpe(tmp_path, extra=extra)
    for token_id, (text, _) in enumerate(extra, start=256):
        assert token_id not in tokenizer.encode(f"x{text}y")
        assert token_id in tokenizer.encode(f"x{text}y", parse_special=True)


def test_the_longest_wins_then_what_is_left(tmp_path):
    extra = [("<a", CONTROL), ("<a<b>", CONTROL), ("b>c", CONTROL)]
    tokenizer = byte_bpe(tmp_path, extra=extra)
    assert tokenizer.encode("<a<b>c", parse_special=True) == [257, 99]
    assert tokenizer.encode("<a<a<b>cb>c", parse_special=True) == [256, 257, 99, 258]


def test_control_tokens_lie_wholly_in_trusted_spans(tmp_path):
    tokenizer = byte_bpe(tmp_path, extra=EXTRA)
    text = "<|im_end|><|im_end|>"
    assert tokenizer.encode_spans(text, [(0, 20)]) == [END, END]
    assert tokenizer.encode_spans(text, [(10, 20)])[-1] == END
    assert tokenizer.encode_spans(text, [(10, 20)])[:-1] == tokenizer.encode("<|im_end|>")
    assert END not in tokenizer.encode_spans(text, [(0, 9), (11, 20)])
    assert tokenizer.encode_spans("<|im_<|im_end|>", [(2, 15)])[-1] == END


def test_a_space_goes_before_text_after_special_tokens(tmp_path):
    tokenizer = spm(tmp_path, PIECES)
    space_g = 259 + 2
    assert tokenizer.encode("G", add_special=False) == [space_g]
    assert tokenizer.encode("<s>G", add_special=False, parse_special=True) == [1, space_g]
    assert (
        tokenizer.decode([1, space_g]) == "G"
        and tokenizer.decode([space_g], at_start=False) == " G"
    )
    assert (
        tokenizer.decode(tokenizer.encode("G</s>H", parse_special=True), special=True)
        == "<s>G</s>H"
    )


def test_white_space_beside_phi3_tokens_is_swallowed(tmp_path):
    extra = [("<|user|>", CONTROL), ("<|endoftext|>", CONTROL)]
    tokenizer = spm(tmp_path, PIECES, extra, keys={"general.name": "Phi-3 mini"})
    user, end = 259 + len(PIECES), 260 + len(PIECES)
    assert tokenizer.encode("<|user|> \n G", False, True) == [user, 261]
    assert tokenizer.encode("<|endoftext|> G", False, True)[:2] == [end, 259]


@pytest.mark.parametrize("n", [3000])
def test_many_special_tokens_cost_little(tmp_path, n):
    import time

    tokenizer = byte_bpe(tmp_path, extra=[(f"<unused{i}>", CONTROL) for i in range(n)])
    tokenizer.require_text()
    start = time.process_time()
    ids = tokenizer.encode("<ul> <unused7> " * 2000, parse_special=True)
    assert ids.count(263) == 2000 and time.process_time() - start < 2
