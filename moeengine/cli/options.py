"""Options that several commands share. Their names and defaults are those of the settings' fields."""

from dataclasses import fields
from pathlib import Path

from moeengine.config import (
    MOE_MODES_READY,
    N_CTX_DEFAULT,
    N_UBATCH_DEFAULT,
    EngineConfig,
    GenerationParams,
    SamplingParams,
)  # fmt: skip
from moeengine.errors import ConfigError

_DEFAULTS = {
    f.name: f.default
    for kind in (EngineConfig, GenerationParams, SamplingParams)
    for f in fields(kind)
}


def _add(group, *flags, field, help, default_text=None, **more):
    """One option of a setting. Left out, it is None: the setting's own default, which help shows."""
    shown = default_text or f"{_DEFAULTS[field]}"
    group.add_argument(*flags, dest=field, help=f"{help} (default: {shown})", **more)


def _pick(args, kind):
    """What was given on the command line of the fields of `kind`: a dict."""
    given = {f.name: getattr(args, f.name, None) for f in fields(kind)}
    return {name: value for name, value in given.items() if value is not None}


def add_model_options(parser):
    group = parser.add_argument_group("model")
    add_model_path(group)
    _add(group, "-c", "--ctx", "--n-ctx", field="n_ctx", type=int, metavar="N",
         help="tokens the context can hold", default_text=f"the model's own, at most {N_CTX_DEFAULT}")  # fmt: skip
    _add(group, "--force-pre", field="force_pre", metavar="NAME",
         help="pre-tokenizer to use", default_text="what the file names")  # fmt: skip


def add_model_path(group):
    group.add_argument(
        "-m", "--model", metavar="FILE",
        help="GGUF file, any shard of a set, or its folder (default: the small model of the package)",
    )  # fmt: skip


def add_machine_options(parser):
    group = parser.add_argument_group("machine (changes speed, never the text)")
    _add(group, "-t", "--threads", "--n-threads", field="n_threads", type=int, metavar="N",
         help="compute threads", default_text="physical cores, affinity or CPU quota, whichever is least")  # fmt: skip
    _add(group, "--ubatch", "--n-ubatch", field="n_ubatch", type=int, metavar="N",
         help="prompt tokens computed together", default_text=N_UBATCH_DEFAULT)  # fmt: skip
    _add(group, "--moe-mode", field="moe_mode", choices=MOE_MODES_READY,
         help="how expert bytes reach the kernels: " + ", ".join(MOE_MODES_READY))  # fmt: skip


def add_sampling_options(parser, *, n_tokens_default=None):
    group = parser.add_argument_group("sampling (changes the text)")
    _add(group, "-n", "--max-tokens", field="max_tokens", type=int, metavar="N",
         help="new tokens at most; -1: until the context is full", default_text=n_tokens_default)  # fmt: skip
    for flags, field, kind, help in (
        (("--temp", "--temperature"), "temperature", float, "0: always the likeliest token"),
        (("--top-k",), "top_k", int, "keep the k likeliest; 0: all"),
        (("--top-p",), "top_p", float, "keep the fewest whose probabilities reach P; 1: all"),
        (("--min-p",), "min_p", float, "keep those P times as likely as the best; 0: all"),
        (("--repeat-penalty",), "repeat_penalty", float, "divides logits of recent tokens; 1: off"),
        (
            ("--repeat-last-n",),
            "repeat_last_n",
            int,
            "recent tokens that penalties see; -1: all, 0: off",
        ),
        (
            ("--presence-penalty",),
            "presence_penalty",
            float,
            "taken once from recent tokens; 0: off",
        ),
        (("--frequency-penalty",), "frequency_penalty", float, "taken for each occurrence; 0: off"),
    ):
        _add(group, *flags, field=field, type=kind, metavar="N" if kind is int else "P", help=help)
    _add(group, "-s", "--seed", field="seed", type=int, metavar="N",
         help="equal seeds give equal text", default_text="random, told at the end")  # fmt: skip
    _add(group, "--stop", field="stop", action="append", metavar="TEXT",
         help="end the answer before TEXT; may be given several times", default_text="none")  # fmt: skip
    group.add_argument("--logit-bias", action="append", type=_logit_bias, metavar="ID=NUMBER",
                       help="add NUMBER to the logit of token ID; -inf bans it (default: none)")  # fmt: skip
    group.add_argument("--ignore-eos", action="store_true", default=None,
                       help="go on after an end token (default: off)")  # fmt: skip


def _logit_bias(text):
    token, _, number = text.partition("=")
    return int(token), float(number)


def add_text_options(parser, what):
    """-p TEXT, -f FILE or standard input; see `read_text`."""
    group = parser.add_argument_group(what).add_mutually_exclusive_group()
    group.add_argument("-p", "--prompt", metavar="TEXT", help=f"the {what}")
    group.add_argument("-f", "--file", metavar="FILE",
                       help=f"file with the {what}, UTF-8; a line break at its very end is left out")  # fmt: skip


def read_text(args, stdin):
    """The text given by -p, -f or on `stdin`, where that is no terminal; else a usage error."""
    if args.prompt is not None:
        return args.prompt
    if args.file is not None and args.file != "-":
        data, name = Path(args.file).read_bytes(), args.file
    elif args.file is None and stdin.isatty():
        args.parser.error("found no text, expected -p TEXT, -f FILE or text on standard input")
    else:
        data, name = stdin.buffer.read(), "standard input"
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{name}: found byte {error.start} that is no UTF-8, expected UTF-8 text"
        ) from None
    return text.removesuffix("\n").removesuffix("\r") if text.endswith("\n") else text


def model_path(args):
    """The file given by -m, or the model that ships with the package. ConfigError: there is none."""
    if args.model is not None:
        return args.model
    try:
        from moeengine.models import default_model_path
    except ImportError:
        raise ConfigError(
            "model: this installation ships none, expected -m FILE with a GGUF model"
        ) from None
    return default_model_path()


def engine_settings(args):
    """Keyword arguments for Engine."""
    return _pick(args, EngineConfig)


def generation_settings(args):
    """Keyword arguments for generate and chat."""
    settings = _pick(args, GenerationParams) | _pick(args, SamplingParams)
    if "logit_bias" in settings:
        settings["logit_bias"] = dict(settings["logit_bias"])
    return settings
