"""Prompts of every kind, text, token ids or chat messages, become token ids."""

import logging
import operator
from collections.abc import Mapping

from moeengine.errors import ConfigError

logger = logging.getLogger("moeengine")


def token_ids(tokens, n_vocab, name="tokens", expected="a list of token ids"):
    """A new list of int. ConfigError: not a sequence of integers 0 <= id < n_vocab."""
    ids = []
    try:
        if isinstance(tokens, (bytes, bytearray)):  # a text not decoded, rather than ids up to 255
            raise TypeError
        for token in tokens:
            if isinstance(token, (bool, str)):
                raise TypeError
            ids.append(operator.index(token))
    except TypeError:
        raise ConfigError(f"{name}: found {_short(tokens)}, expected {expected}") from None
    if ids and (min(ids) < 0 or max(ids) >= n_vocab):
        wrong = next(i for i in ids if not 0 <= i < n_vocab)
        raise ConfigError(f"{name}: found id {wrong}, expected 0 to {n_vocab - 1}")
    return ids


def is_messages(prompt):
    return isinstance(prompt, (list, tuple)) and len(prompt) > 0 and isinstance(prompt[0], Mapping)


def prompt_tokens(runtime, prompt, params):
    """Token ids of a prompt.

    prompt : str, sequence of int, or list of {"role": str, "content": str}
    params : GenerationParams

    An empty prompt is the BOS token alone. ConfigError: there is no BOS, or it is no prompt.
    """
    if isinstance(prompt, str):
        ids = runtime.tokenizer().encode(
            prompt, add_special=params.add_special, parse_special=params.parse_special
        )
    elif is_messages(prompt):
        ids = chat_tokens(runtime, prompt, params)
    else:
        ids = prompt
    ids = token_ids(ids, runtime.hparams.n_vocab, "prompt", "a text, a list of token ids or a list of messages")
    bos_id = runtime.tokenizer().bos_id
    if bos_id is not None and ids[:2] == [bos_id, bos_id]:
        logger.warning("the prompt begins with two BOS tokens; add_special=False leaves one out")
    if not ids:
        if bos_id is None:
            raise ConfigError(
                "prompt: found no token, expected at least one; there is no BOS to begin with"
            )
        ids = [bos_id]
    return ids


def chat_tokens(runtime, messages, params):
    """Token ids of a conversation, ready for the answer. ConfigError: as the template."""
    reserved = {"messages", "add_generation_prompt", "self"} & params.template_variables.keys()
    if reserved:
        raise ConfigError(
            f"template_variables: found {', '.join(sorted(reserved))}, expected other names"
        )
    template = runtime.chat_template(params.chat_template)
    return template.encode(messages, **params.template_variables)


def _short(value):
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
