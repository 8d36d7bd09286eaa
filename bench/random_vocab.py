"""A byte-level BPE vocabulary of any size with made-up but word-like tokens."""

import random

from gguf import GGUFReader, TokenType

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_LETTERS = "etaoinshrdlcumwfgypbvkjxqz"  # by frequency in English text


def add_random_vocab(writer, n_vocab: int, seed: int) -> None:
    """Write tokenizer metadata: 256 bytes, merges, 3 control tokens, the rest unused.

    n_vocab >= 256 + 3; raises ValueError otherwise.
    """
    if n_vocab < 256 + len(SPECIAL):
        raise ValueError(f"a byte-level vocabulary needs at least 259 tokens, got {n_vocab}")
    n_regular = n_vocab - len(SPECIAL) - (290 if n_vocab > 100_000 else 0)  # Qwen keeps spare ids
    tokens, merges = _grow(n_regular, random.Random(seed))
    types = [TokenType.NORMAL] * len(tokens) + [TokenType.CONTROL] * len(SPECIAL)
    tokens += SPECIAL
    n_spare = n_vocab - len(tokens)
    tokens += [f"[PAD{len(tokens) + i}]" for i in range(n_spare)]
    types += [TokenType.UNUSED] * n_spare
    _write(writer, tokens, types, merges, n_regular)


def _write(writer, tokens, types, merges, first_special):
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(first_special)
    writer.add_pad_token_id(first_special)
    writer.add_eos_token_id(first_special + 2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def copy_vocab(writer, path: str) -> None:
    """Copy every `tokenizer.*` key of another GGUF file."""
    for key, field in GGUFReader(path).fields.items():
        if key.startswith("tokenizer."):
            value_type = field.types[0]
            sub_type = field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(key, field.contents(), value_type, sub_type)


def _byte_chars() -> list[str]:
    """Printable stand-ins of the 256 bytes, in GPT-2's order of ids. Source: GPT-2 encoder.py."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    other = [b for b in range(256) if b not in printable]
    return [chr(b) for b in printable] + [chr(256 + i) for i in range(len(other))]


def _grow(n_tokens: int, rng: random.Random) -> tuple[list[str], list[str]]:
    """Merge earlier tokens at random, short and frequent ones more often, until `n_tokens`."""
    tokens = _byte_chars()
    known = set(tokens)
    pool = list(_LETTERS)  # what a merge may start with, most frequent first
    pool += ["Ġ" + c for c in _LETTERS] + [c.upper() for c in _LETTERS]
    merges = []
    for word in pool[len(_LETTERS) : 2 * len(_LETTERS)]:
        if len(tokens) < n_tokens:
            merges.append(f"{word[0]} {word[1]}")
            tokens.append(word)
            known.add(word)
    tails = list(_LETTERS)  # what a merge may end with: never begins a word
    while len(tokens) < n_tokens:
        left = pool[int(len(pool) * rng.random() ** 3)]
        right = tails[int(len(tails) * rng.random() ** 3)]
        word = left + right
        if word in known or len(word) > 14:
            continue
        known.add(word)
        merges.append(f"{left} {right}")
        tokens.append(word)
        pool.append(word)
        if "Ġ" not in word and not word[0].isupper():
            tails.append(word)
    return tokens, merges
