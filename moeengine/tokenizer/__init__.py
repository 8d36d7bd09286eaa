"""Text to token ids and back, and chat templates, from what a GGUF file carries.

tokenizer.py        Tokenizer: what the rest of moeengine uses
vocab.py roles.py   the file's keys; what each token is for
specials.py         cutting a text at special tokens
model.py            choice of encoder: byte_bpe.py, raw_bpe.py, spm.py
pre.py              the pre-tokenizers by name; unicode_tables.py their character classes
stream.py           ids to text, one at a time
harmony.py          answers of gpt-oss: thoughts and text
chat.py             messages to ids; traced.py, template_env.py, template_limits.py: how they stay harmless
"""

from moeengine.tokenizer.tokenizer import Tokenizer

__all__ = ["ChatTemplate", "Tokenizer"]


def __getattr__(name):
    if name == "ChatTemplate":  # brings in Jinja2, which only chat needs
        from moeengine.tokenizer.chat import ChatTemplate

        return ChatTemplate
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
