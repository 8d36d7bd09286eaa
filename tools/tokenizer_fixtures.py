"""Writes tests/tokenizer/fixtures: small vocabularies, texts, and the ids that stock llama.cpp gives for them.

    python tools/tokenizer_fixtures.py --stock-python VENV/bin/python

VENV holds an installed llama-cpp-python, the reference. The vocabularies are made here, from seeded random text, so
that merges cross every place where some pre-tokenizer cuts; a wrong cut then changes ids.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from moeengine.tokenizer.pre import PRE_TOKENIZERS
from tests.tokenizer import vocabs
from tests.tokenizer.random_text import random_texts

UNMERGED = [("Zebra", vocabs.NORMAL), ("\u0120zymurgy", vocabs.NORMAL)]
OUT = ROOT / "tests" / "tokenizer" / "fixtures"
FIXED_TEXTS = (
    "", " ", "  ", "   ", "\t", "\n", "\n\n", "\n\n\n", "\t\n", "\r\n", "\r\n\r\n x", " \n ", "a  \n\n  b", "x\u2029y\u2028z\x85w",
    "a\u00a0b\u3000\u3000c\u1680d\u2003e", "1", "12", "123", "1234", "12345", "123456", "1234567", "x1234567y 12 \u0663\u0664\u0665\u0666",
    "\u00bd\u2167\u00b2 3.14159 1,000,000", "don't I'LL we've 'S 'tis rock'n'roll y'all'd", "camelCase HTTPServer ABCdef XMLHttp A\u00e9B",
    "\u00c4pfel A\u0308pfel e\u0301\u0300x", "\u4f60\u597d\u4e16\u754c\u3001\u3053\u3093\u306b\u3061\u306f\u30ab\u30ca\uff01", "\uc548\ub155 \ud558\uc138\uc694 ABC",
    "\u0928\u092e\u0938\u094d\u0924\u0947 \u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35 \u0645\u0631\u062d\u0628\u0627", "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f636\u200d\U0001f32b\ufe0f\u2705",
    "    if (x == 10) {\n\treturn y+=1; // ok\n    }\n", "$100 + <b>|x|</b> ~ `a^b` \u20ac5", "...!!! ???\n\n?!\r\n--//", "\u2026\u201cq\u201d\u2018s\u2019\u2014\u3002\uff0c",
    "trailing   ", "   leading", "x  1234  y   \u0663", "it'tis 'sure 'red 'mine 'dog 'very 'll.", "wait!\nno.\r\nyes/\n", "Zebra zymurgy", "a\x00b\x1bc\u200bd\ufeffe", "\u0378\U0002ebf0\U00010d40\ue000\U0010ffff", "<sentinel:12>IMGIMGABCDZ",
)  # fmt: skip
ORACLE = """
import ctypes, json, sys
import llama_cpp as L
silent = L.llama_log_callback(lambda level, text, data: None)
L.llama_log_set(silent, None)
params = L.llama_model_default_params()
params.vocab_only = True
model = L.llama_model_load_from_file(sys.argv[1].encode(), params)
vocab = L.llama_model_get_vocab(model)
buffer = (L.llama_token * 65536)()
for text, add_special, parse_special in json.load(sys.stdin):
    data = text.encode()
    n = L.llama_tokenize(vocab, data, len(data), buffer, 65536, add_special, parse_special)
    print(json.dumps(list(buffer[:n])))
"""


def stock_ids(python, path, cases):
    """What stock makes of `cases`, a list of (text, add_special, parse_special)."""
    command = [python, "-c", ORACLE, str(path)]
    result = subprocess.run(
        command, input=json.dumps(cases), capture_output=True, text=True, check=True
    )
    return [json.loads(line) for line in result.stdout.splitlines()]


def trained(corpus, n_merges, pre=None, **options):
    """Merges that plain BPE training finds in texts which are not cut into words."""
    tokenizer = Tokenizer(models.BPE())
    if pre is not None:
        tokenizer.pre_tokenizer = pre
    trainer = trainers.BpeTrainer(
        vocab_size=n_merges, show_progress=False, max_token_length=16, **options
    )
    tokenizer.train_from_iterator(corpus, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return sorted(model["vocab"], key=model["vocab"].get), [
        " ".join(pair) for pair in model["merges"]
    ]


def corpus(seed, n):
    """Training texts without the control characters and names that the vocabularies use otherwise."""
    texts = random_texts(seed, n)
    return [
        t.replace("\x00", "").replace("</s>", "").replace("<s>", "").replace("<|im_end|>", "")
        for t in texts
    ]


def byte_level(python, folder):
    """Ids a pre-tokenizer: one vocabulary, under each name; names that give the same ids share a group."""
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    byte_chars = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    _, merges = trained(
        corpus(11, 3000) + dense_texts(), 256 + 1000, byte_chars, initial_alphabet=alphabet
    )
    known = {merge.replace(" ", "") for merge in merges}
    merges += [merge for merge in ("' t", "i s", "'t is") if merge.replace(" ", "") not in known]
    texts = [*FIXED_TEXTS, *random_texts(12, 12)]
    groups = {}
    for name, row in PRE_TOKENIZERS.items():
        if not row.raw:
            path = vocabs.write_byte_bpe(folder / f"{name}.gguf", merges, UNMERGED, pre=name)
            ids = stock_ids(python, path, [(text, False, False) for text in texts])
            groups.setdefault(json.dumps(ids), []).append(name)
    groups = [{"names": names, "ids": json.loads(ids)} for ids, names in groups.items()]
    return {"merges": merges, "unmerged": UNMERGED, "texts": texts, "groups": groups}


def dense_texts():
    """Texts in which all kinds of characters stand side by side."""
    rng = random.Random(13)
    units = "a b A B 1 2 . , ' 's 'S \u00e9 \u4e2d \u304b \uac00 - \u0663 \u0301 \U0001f680 the Word 999 / $ < | `".split(
        " "
    )
    units += [" ", "  ", "\n", "\r\n", "\t", ".\n", "'t", "'s", "is", "ure"]
    return ["".join(rng.choices(units, k=rng.randint(2, 14))) for _ in range(8000)]


def raw(python, folder):
    """Ids of vocabularies over plain UTF-8, which lack some characters."""
    spaced = [text.replace(" ", "\u2581") for text in corpus(14, 3000)]
    tokens, merges = trained(spaced, 1000, limit_alphabet=300)
    extra = ["<bos>", "<eos>", "\n\n", "\n\n\n", "<h1>"]
    tokens = [*extra, *vocabs.BYTE_TOKENS, *(t for t in tokens if t not in extra)]
    kinds = [3, 3, 4, 4, 4] + [6] * 256 + [1] * (len(tokens) - 261)
    cases = [
        (text, add, False)
        for text in (*FIXED_TEXTS, *random_texts(15, 10), "a\n\nb\n\n\n\nc<h1>")
        for add in (False, True)
    ]
    files = {}
    for model, pre in (("gemma4", "gemma4"), ("gpt2", "sarvam-moe")):
        keys = {"bos_token_id": 0, "eos_token_id": 1}
        path = vocabs.write_vocab(
            folder / f"{pre}.gguf", model, tokens, kinds=kinds, merges=merges, pre=pre, keys=keys
        )
        files[pre] = {"model": model, "ids": stock_ids(python, path, cases)}
    return {"tokens": tokens, "kinds": kinds, "merges": merges, "cases": cases, "files": files}


def sentencepiece(python, folder):
    """Ids of SentencePiece vocabularies: many tokens of one score, characters that are no tokens, special tokens."""
    files = []
    for seed, keys in enumerate(
        ({}, {"add_space_prefix": False, "add_eos_token": True}, {"general.name": "Phi-3"})
    ):
        rng = random.Random(seed)
        texts = [text.replace(" ", "\u2581") for text in corpus(20 + seed, 500) if len(text) > 1]
        pieces = {"a", "b", "\u2581"}
        while len(pieces) < 700:
            text = rng.choice(texts)
            start = rng.randrange(len(text))
            pieces.add(text[start : start + rng.randint(1, 5)])
        scored = [(piece, -rng.randint(0, 30)) for piece in sorted(pieces)]
        extra = [
            ("<|user|>", 3),
            ("<|end|>", 3),
            ("[X] ", 4),
            ("  ", 4),
            ("<unused>", 5),
            ("<|endoftext|>", 3),
        ]
        path = vocabs.write_spm(
            folder / f"spm{seed}.gguf",
            scored,
            extra,
            keys={"bos_token_id": 1, "eos_token_id": 2, **keys},
        )
        texts = [*FIXED_TEXTS, *random_texts(30 + seed, 10)]
        texts += ["<|user|>\n hi <|end|>\n", "a<|user|> b[X] c  d   e<|end|><|end|>  ", "<unused>x"]
        cases = [(text, True, parse) for text in texts for parse in (False, True)]
        files.append(
            {
                "pieces": scored,
                "extra": extra,
                "keys": keys,
                "cases": cases,
                "ids": stock_ids(python, path, cases),
            }
        )
    return files


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--stock-python", required=True, help="Python that has llama-cpp-python installed"
    )
    python = parser.parse_args().stock_python
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for stem, make in (("byte_bpe", byte_level), ("raw_bpe", raw), ("spm", sentencepiece)):
            text = json.dumps(make(python, folder), separators=(",", ":"))
            (OUT / f"{stem}.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
