"""Messages to token ids, by the chat template that a model file carries (or one the caller gives).

What the template writes may spell control tokens; what messages say never does, whatever they contain.
"""

import threading
from collections.abc import Mapping
from typing import NamedTuple

import gguf
from jinja2 import TemplateError, TemplateSyntaxError

from moeengine.errors import ConfigError
from moeengine.tokenizer.harmony import CHANNEL, with_thoughts_apart
from moeengine.tokenizer.source import metadata_of
from moeengine.tokenizer.template_env import ChatEnvironment
from moeengine.tokenizer.template_limits import MAX_TEMPLATE, Budget
from moeengine.tokenizer.traced import literal, trusted_spans

KEYS = gguf.Keys.Tokenizer
# Roles a template may build a control token from, as in '<|' + role + '|>'. Any other role is plain text.
ROLES = frozenset(
    "assistant context developer documents environment function ipython model observation system tool "
    "tool_response tools user".split()
)


MAX_TOLD = 600  # characters of a template's own error message


class Segment(NamedTuple):
    """A stretch of a rendered chat. `trusted`: written by the template, so control tokens are read in it."""

    text: str
    trusted: bool


class ChatTemplate:
    """One chat template with the tokenizer it is for.

    Parameters
    ----------
    source : str         Jinja2 text
    tokenizer : Tokenizer

    Raises
    ------
    ConfigError    the template is not valid
    """

    def __init__(self, source, tokenizer):
        self._tokenizer = tokenizer
        self._has_channels = CHANNEL in source
        self._lock = threading.Lock()
        self._environment = ChatEnvironment()
        self._environment.budget = Budget()
        if len(source) > MAX_TEMPLATE:
            raise ConfigError(
                f"chat template: found {len(source)} characters, expected at most {MAX_TEMPLATE}"
            )
        try:
            self._template = self._environment.from_string(source)
        except TemplateSyntaxError as error:
            raise ConfigError(f"chat template, line {error.lineno}: {error.message}") from None
        except (TemplateError, RecursionError, SyntaxError, ValueError, MemoryError) as error:
            raise ConfigError(f"chat template: {_told(error)}") from None

    @classmethod
    def from_gguf(cls, file, tokenizer, *, name="default"):
        """The template that a model file carries.

        Parameters
        ----------
        file : path of a file, shard or folder; or an open GGUFFile or ModelFile
        name : str    variant, for files that carry several

        Raises
        ------
        ConfigError    the file has none of this name, or it is not valid
        GGUFError      the file is not sound
        """
        templates = chat_templates(metadata_of(file))
        if name in templates:
            return cls(templates[name], tokenizer)
        if not templates:
            raise ConfigError(
                f"the model file has no chat template (key {KEYS.CHAT_TEMPLATE}), so it may not be made for chat; "
                f"generate from a plain prompt, or give a template"
            )
        names = ", ".join(sorted(templates))
        raise ConfigError(f"chat template: found no variant {name!r}, expected one of {names}")

    def render(self, messages, add_generation_prompt=True, **extra):
        """Write a conversation out.

        Parameters
        ----------
        messages : list of dict    "role" and whatever the template reads, mostly "content"
        add_generation_prompt : bool    end with the opening of the assistant's answer
        extra                      further variables for the template: tools, documents, enable_thinking, ...

        Returns
        -------
        list of Segment    in order; together they are the text

        Raises
        ------
        ConfigError    a message has no role or no content, the template refuses the conversation (its own words are given) or uses
                       more than `template_limits` allows
        """
        text = self._rendered(messages, add_generation_prompt, extra)
        plain, segments, at = str.__str__(text), [], 0
        for start, end in trusted_spans(text):
            segments += [Segment(plain[at:start], False), Segment(plain[start:end], True)]
            at = end
        segments.append(Segment(plain[at:], False))
        return [segment for segment in segments if segment.text]

    def encode(self, messages, add_generation_prompt=True, **extra):
        """Ids of a conversation, with exactly one BOS when the vocabulary or the template wants one.

        Parameters, errors: as `render`, and those of `Tokenizer.encode`.

        Returns
        -------
        list of int
        """
        text = self._rendered(messages, add_generation_prompt, extra)
        ids = self._tokenizer.encode_spans(str.__str__(text), trusted_spans(text))
        bos = self._tokenizer.bos_id
        n_bos = next((i for i, token_id in enumerate(ids) if token_id != bos), len(ids))
        wanted = bos is not None and (n_bos > 0 or self._tokenizer.add_bos)
        return [bos] * wanted + ids[n_bos:]

    def _rendered(self, messages, add_generation_prompt, extra):
        counter = _Counter(with_thoughts_apart if self._has_channels else dict)
        variables = {
            "tools": None,
            "documents": None,
            **self._special_texts(),
            **{name: counter.plain(value, name) for name, value in extra.items()},
            "messages": counter.messages(messages),
            "add_generation_prompt": bool(add_generation_prompt),
        }
        with self._lock:
            environment = self._environment
            environment.budget = Budget(counter.n_chars, counter.n_entries, counter.sizes)
            try:
                context = self._template.new_context(variables)
                return environment.concatenated(self._template.root_render_func(context))
            except Exception as error:
                raise ConfigError(f"chat template: {_told(error)}{_hint(messages)}") from error

    def _special_texts(self):
        tokenizer = self._tokenizer
        texts = {}
        for name in ("bos", "eos", "unk", "pad"):
            token_id = tokenizer.special_ids.get(name)
            texts[f"{name}_token"] = literal(
                "" if token_id is None else tokenizer.token_text(token_id)
            )
        return texts


def chat_templates(file):
    """The templates of an open file: variant name -> text; "default" is the one without a name."""
    default = file.get_str(KEYS.CHAT_TEMPLATE, None)
    templates = {} if default is None else {"default": default}
    for name in file.get_array(KEYS.CHAT_TEMPLATES, (), kind="str"):
        text = file.get_str(KEYS.CHAT_TEMPLATE_N.format(name=name), None)
        if text is not None:
            templates[name] = text
    return templates


class _Counter:
    """Copies what a caller gives into plain containers and strings, and measures it.

    prepare : callable    makes the message that a template wants from the one given

    Attributes
    ----------
    n_chars, n_entries : int    characters and entries so far
    sizes : dict     id of each container -> (entries, characters) in it
    """

    def __init__(self, prepare):
        self._prepare = prepare
        self.n_chars = self.n_entries = 0
        self.sizes = {}

    def messages(self, messages):
        if isinstance(messages, (str, Mapping)) or not hasattr(messages, "__iter__"):
            raise ConfigError(
                f"messages: found {type(messages).__name__}, expected a list of mappings"
            )
        copies = [self._message(message, i) for i, message in enumerate(messages)]
        self.sizes[id(copies)] = self.n_entries + len(copies), self.n_chars
        return copies

    def _message(self, message, i):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise ConfigError(
                f"message {i}: found no role, expected a mapping with 'role' and 'content'"
            )
        if message.get("content") is None and not message.get("tool_calls"):
            raise ConfigError(f"message {i}: found no content, expected 'content' or 'tool_calls'")
        if not isinstance(message.get("content"), (str, list, tuple, type(None))):
            found = type(message["content"]).__name__
            raise ConfigError(f"message {i}: found content of type {found}, expected text")
        message = self.plain(self._prepare(message), f"message {i}")
        if message["role"] in ROLES:
            message["role"] = literal(message["role"])
        return message

    def plain(self, value, where, depth=0):
        if depth > 64:
            raise ConfigError(f"{where}: found more than 64 levels, expected fewer")
        if isinstance(value, str):
            self.n_chars += len(value)
            return str.__str__(value)
        if value is None or isinstance(value, (bool, int, float)):
            return value
        before = self.n_entries, self.n_chars
        if isinstance(value, Mapping):
            copy = {
                self.plain(k, where, depth + 1): self.plain(v, where, depth + 1)
                for k, v in value.items()
            }
            self.n_entries += 2 * len(copy)
        elif isinstance(value, (list, tuple)):
            copy = [self.plain(item, where, depth + 1) for item in value]
            self.n_entries += len(copy)
        else:
            raise ConfigError(
                f"{where}: found {type(value).__name__}, expected text, numbers, lists and mappings"
            )
        self.sizes[id(copy)] = self.n_entries - before[0], self.n_chars - before[1]
        return copy


def _hint(messages):
    """What may have been wrong with messages that a template failed on; "" where they are plain."""
    for i, message in enumerate(messages):
        if not isinstance(message.get("content"), (str, type(None))):
            return f"; message {i} has a list as its content, and this template may take text alone"
    return ""


def _told(error):
    """What an exception says, as the end of a sentence."""
    if isinstance(error, RecursionError):
        return "too deeply nested"
    text = str(error)[:MAX_TOLD] or type(error).__name__
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)
