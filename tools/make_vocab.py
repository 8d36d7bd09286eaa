"""Trains the byte-level BPE vocabulary of the shipped model. Run: python tools/make_vocab.py OUT/tokenizer.json"""

from __future__ import annotations

import argparse

from tales.corpus import END_OF_TEXT, IM_END, IM_START, documents
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

N_VOCAB = 1536
PRE = "qwen2"  # the name under which tokenizer.ggml.pre is known everywhere
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def train_vocab(seed: int = 1, n_documents: int = 30000) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    specials = [END_OF_TEXT, IM_START, IM_END]
    trainer = trainers.BpeTrainer(
        vocab_size=N_VOCAB - len(specials), show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    corpus = (
        d.replace(END_OF_TEXT, "").replace(IM_START, "").replace(IM_END, "") for d in documents(seed, n_documents)
    )
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer.add_special_tokens(specials)
    assert tokenizer.get_vocab_size() == N_VOCAB
    return tokenizer


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out")
    train_vocab().save(parser.parse_args().out)
