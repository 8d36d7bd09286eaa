"""Answers of gpt-oss in parts: its control tokens say which part is thought and which is for the user.

An answer reads `<|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...`. Templates
want the parts apart, and refuse text with the markers in it.
Source: OpenAI, "OpenAI harmony response format".
"""

import re

MARKER = "<|message|>"
PART = re.compile(r"<\|channel\|>\s*(\w*)[^<]*<\|message\|>(.*?)(?=<\|(?:end|start|channel|call|return)\|>|\Z)", re.DOTALL)


def assistant_message(tokenizer, completion):
    """The message of a Completion for the next prompt: dict with "role" and "content".

    Where control tokens part the answer into channels, content is the "final" one, and "thinking" what "analysis" says.
    """
    tokens = [t for t in completion.tokens if t < tokenizer.n_vocab]  # a model may have more rows
    parts = []
    if any(tokenizer.is_special(t) and tokenizer.token_text(t) == MARKER for t in tokens):
        parts = PART.findall(tokenizer.decode(tokens, special=True))
    message = {"role": "assistant", "content": completion.text}
    if not parts:
        return message
    final, thinking = ("".join(text for name, text in parts if name == channel) for channel in ("final", "analysis"))
    return message | {"content": final} | ({"thinking": thinking} if thinking else {})
