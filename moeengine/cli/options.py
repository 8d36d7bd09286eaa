"""Options that several commands share; names and defaults are those of the settings' fields."""

import argparse
import os
from dataclasses import fields

from moeengine import config
from moeengine.config import EngineConfig, GenerationParams, SamplingParams
from moeengine.errors import ConfigError

_DEFAULTS = {
    f.name: f.default
    for kind in (EngineConfig, GenerationParams, SamplingParams)
    for f in fields(kind)
}
MAX_TEXT_BYTES = 1 << 26  # of a prompt; what never ends, such as a device, would take all memory
_NUMBERS = {int: "N", float: "X"}  # metavar of a type, or else of a field
_WORDS = {"cache_mb": "MB", "memory_budget": "SIZE", "warm_experts": "FILE", "expert_map": "FILE"}

# flags, field, type or choices, help, and the default in words where the field's own says nothing
_MODEL = (
    (("-c", "--ctx", "--n-ctx"), "n_ctx", int, "tokens the context can hold",
     f"the model's own, at most {config.N_CTX_DEFAULT}"),
    (("--force-pre",), "force_pre", str, "pre-tokenizer to use", "what the file names"),
)  # fmt: skip
_LOSSY = (
    (
        ("--n-expert-used",),
        "n_expert_used",
        int,
        "experts for each token",
        "the model's own number",
    ),
    (("--drop-cold-experts",), "drop_cold_experts", float,
     "stream: leave out experts that would cost a read and weigh less than this share", None),
)
_MACHINE = (
    (("-t", "--threads", "--n-threads"), "n_threads", int, "compute threads",
     "physical cores, affinity or CPU quota, whichever is least"),
    (("--ubatch", "--n-ubatch"), "n_ubatch", int, "prompt tokens computed together",
     config.N_UBATCH_DEFAULT),
)  # fmt: skip
_SUPPLY = (
    (("--cache-mb",), "cache_mb", str, "stream: megabytes for experts; 0: none are kept", None),
    (("--cache-policy",), "cache_policy", config.CACHE_POLICIES,
     "stream: lfu keeps what is used often, lru what was used last", None),
    (("--io-threads",), "io_threads", int, f"threads that read, 1 to {config.MAX_IO_THREADS}", None),
    (("--moe-sweep-min-tokens",), "sweep_min_tokens", int,
     "sweep over the experts of a layer from so many tokens up", None),
    (("--sweep-method",), "sweep_method", config.SWEEP_METHODS,
     "sweep-prefill: read into a ring, announce to the page cache, or what a probe finds faster", None),
    (("--sweep-ahead",), "sweep_ahead", int, "advice: experts announced before use", None),
    (("--sweep-behind",), "sweep_behind", int, "advice: experts kept after use", None),
    (("--memory-budget",), "memory_budget", str,
     "bytes for weights, cache, context and all else together, such as 4G", "what is there"),
    (("--dense-weights",), "dense_weights", config.DENSE_POLICIES,
     "weights that are no experts: left to the page cache, touched at load, read into memory", None),
    (("--warm-experts",), "warm_experts", str,
     "stream: file of `trace --save` whose experts are read at load", "none"),
    (("--prefetch-layers",), "prefetch_layers", int,
     "stream: read ahead what so many later layers would choose", None),
    (("--expert-map",), "expert_map", str, "file of `expert-map` to take the experts' ranges from",
     "the model file's own table"),
    (("--prefetch-method",), "prefetch_method", config.PREFETCH_METHODS,
     "prefetch: how chosen slices get into the page cache", None),
)  # fmt: skip
_SAMPLING = (
    (("-n", "--max-tokens"), "max_tokens", int,
     "new tokens at most; 0: none, -1: until the context is full", None),
    (("--temp", "--temperature"), "temperature", float, "0: always the likeliest token", None),
    (("--top-k",), "top_k", int, "keep the N likeliest; 0: all", None),
    (("--top-p",), "top_p", float, "keep the fewest whose probabilities reach X; 1: all", None),
    (("--min-p",), "min_p", float, "keep those X times as likely as the best; 0: all", None),
    (("--repeat-penalty",), "repeat_penalty", float, "divides recent tokens' logits; 1: off", None),
    (("--repeat-last-n",), "repeat_last_n", int,
     "recent tokens that the penalties see; -1: all, 0: off", None),
    (("--presence-penalty",), "presence_penalty", float, "taken once off recent tokens", None),
    (("--frequency-penalty",), "frequency_penalty", float, "taken off for each occurrence", None),
    (("-s", "--seed"), "seed", int, "equal seeds give equal text", "random, told at the end"),
)  # fmt: skip


def _add(group, rows, defaults):
    """Options of settings. One that is left out is None, which means the setting's own default."""
    for flags, field, kind, help_text, default_text in rows:
        default = default_text or defaults.get(field, _DEFAULTS[field])
        if isinstance(kind, tuple):
            values = {"choices": kind}
        else:
            values = {"type": kind, "metavar": _NUMBERS.get(kind) or _WORDS.get(field, "NAME")}
        group.add_argument(*flags, dest=field, help=f"{help_text} (default: {default})", **values)


def add_model_options(parser):
    group = parser.add_argument_group("model")
    add_model_path(group)
    _add(group, _MODEL, {})


def add_lossy_options(parser):
    group = parser.add_argument_group("lossy (gives up quality for speed)")
    _add(group, _LOSSY, {})


def add_model_path(group):
    group.add_argument(
        "-m",
        "--model",
        metavar="FILE",
        help="GGUF file, any shard of a set, or its folder (default: the package's small model)",
    )


def add_machine_options(parser):
    group = parser.add_argument_group("machine (changes the speed, never the text)")
    _add(group, _MACHINE, {})
    group.add_argument(
        "--swa-full",
        action="store_true",
        default=None,
        help="sliding windows keep the whole context: more memory, but what is edited is not computed from its beginning (default: off)",
    )


def add_supply_options(parser):
    from moeengine.supply import available

    modes = (("--moe-mode",), "moe_mode", ("auto", *available()), "how expert bytes are read", None)
    group = parser.add_argument_group("experts larger than memory (changes the speed, never the text)")
    _add(group, (modes, *_SUPPLY), {})
    group.add_argument(
        "--force-cache",
        action="store_true",
        default=None,
        help="stream: accept a cache that every token overturns (default: off)",
    )
    group.add_argument(
        "--release-mmap",
        action="store_true",
        default=None,
        help="give the file's mapping up once no weight is read from it (default: off)",
    )
    group.add_argument(
        "--moe-stats",
        action="store_true",
        default=None,
        help="tell of every expert tensor of every pass what was used, read and waited for (default: off)",
    )


def add_sampling_options(parser, **defaults):
    """defaults : of fields for which the command has its own"""
    group = parser.add_argument_group("sampling (changes the text)")
    _add(group, _SAMPLING, defaults)
    group.add_argument(
        "--stop",
        action="append",
        type=text_argument,
        metavar="TEXT",
        help="end the answer before TEXT; may be given several times (default: none)",
    )
    group.add_argument(
        "--logit-bias",
        action="append",
        type=_logit_bias,
        metavar="ID=X",
        help="add X to the logit of token ID; -inf bans it (default: none)",
    )
    group.add_argument(
        "--ignore-eos",
        action="store_true",
        default=None,
        help="go on after an end token (default: off)",
    )


def text_argument(value):
    """A text of the command line, UTF-8 also where the system's encoding is less; other bytes are bad usage."""
    try:
        value.encode()
        return value
    except UnicodeEncodeError as error:
        try:
            return os.fsencode(value).decode("utf-8")
        except UnicodeError:
            pass
        raise argparse.ArgumentTypeError(
            f"found a byte after {error.start} characters that is no text, expected UTF-8"
        ) from None


def _logit_bias(text):
    token, _, number = text.partition("=")
    try:
        return int(token), float(number)
    except ValueError:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected ID=X, e.g. 5=-inf") from None


def engine_settings(args):
    """Keyword arguments for Engine."""
    return _given(args, EngineConfig)


def generation_settings(args):
    """Keyword arguments for generate and chat."""
    settings = _given(args, GenerationParams) | _given(args, SamplingParams)
    if "logit_bias" in settings:
        settings["logit_bias"] = dict(settings["logit_bias"])
    return settings


def _given(args, kind):
    """What the command line says of the fields of `kind`: a dict."""
    values = {f.name: getattr(args, f.name, None) for f in fields(kind)}
    return {name: value for name, value in values.items() if value is not None}


def add_rewrite_output(parser):
    """Options of the commands that write a model anew, to OUT."""
    output = parser.add_argument_group("output")
    output.add_argument("--force", action="store_true", help="replace OUT if it exists (default: refuse)")
    output.add_argument("-q", "--quiet", action="store_true", help="no line a tensor (default: off)")


def add_text_options(parser, what):
    """-p TEXT, -f FILE or standard input; see `read_text`."""
    group = parser.add_argument_group(what).add_mutually_exclusive_group()
    group.add_argument("-p", "--prompt", type=text_argument, metavar="TEXT", help=f"the {what}")
    group.add_argument(
        "-f",
        "--file",
        metavar="FILE",
        help=f"file with the {what}, UTF-8; one line break at its very end is left out",
    )


def read_text(args, stdin):
    """The text given by -p, -f or on `stdin`, where that is no terminal; else a usage error.

    Raises
    ------
    ConfigError              it is not UTF-8, or longer than MAX_TEXT_BYTES
    OSError
    """
    if args.prompt is not None:
        return args.prompt
    if args.file is not None and args.file != "-":
        with open(args.file, "rb") as file:
            data, name = file.read(MAX_TEXT_BYTES + 1), args.file
    elif args.file is None and stdin.isatty():
        args.parser.error("found no text, expected -p TEXT, -f FILE or text on standard input")
    else:
        data, name = stdin.buffer.read(MAX_TEXT_BYTES + 1), "standard input"
    if len(data) > MAX_TEXT_BYTES:
        raise ConfigError(f"{name}: found more than {MAX_TEXT_BYTES} bytes, expected at most that")
    text = utf8(data, name)
    return text[:-1].removesuffix("\r") if text.endswith("\n") else text


def utf8(data, name):
    """`data` as text. ConfigError: it is not UTF-8; names what and where."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{name}: found byte {error.start} that is no UTF-8, expected UTF-8 text"
        ) from None


def model_path(args):
    """The file given by -m, or the package's own. ConfigError: there is none."""
    if args.model is not None:
        return args.model
    try:
        from moeengine.models import default_model_path
    except ImportError:
        raise ConfigError(
            "model: this installation ships none, expected -m FILE with a GGUF model"
        ) from None
    return default_model_path()
