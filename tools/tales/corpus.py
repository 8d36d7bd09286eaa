"""Documents for training: plain tales and chats, as text with control tokens."""

from __future__ import annotations

import random

from . import rules
from .grammar import write_tale, write_turn

IM_START, IM_END, END_OF_TEXT = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)


def write_document(rng: random.Random) -> str:
    """One document, closed by the end-of-text token: half are plain tales, half are chats of one to three turns."""
    if rng.random() < 0.5:
        return write_tale(rng, with_weather=rng.random() < 0.3).text + END_OF_TEXT
    text = ""
    if rng.random() < 0.15:
        text += f"{IM_START}system\n{rng.choice(rules.SYSTEM)}{IM_END}\n"
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        ask, answer, _ = write_turn(rng)
        text += f"{IM_START}user\n{ask}{IM_END}\n{IM_START}assistant\n{answer}{IM_END}\n"
    return text + END_OF_TEXT


def documents(seed: int, count: int):
    """`count` documents; the same for the same seed."""
    rng = random.Random(seed)
    for _ in range(count):
        yield write_document(rng)
