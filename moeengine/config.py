"""Settings: what each means, its default, and the check that refuses a wrong one.

Frozen dataclasses; whoever holds one knows that it is valid. Field names are the names of the
command line's options and of the keyword arguments of `Engine` and its calls.
"""

import math
import operator
from dataclasses import dataclass, field, fields

from moeengine.errors import ConfigError

N_CTX_MAX = 2**31 - 1  # positions are int32 in the kernels
N_CTX_DEFAULT = 4096  # tokens, where neither the caller nor a shorter model says otherwise
N_UBATCH_DEFAULT = 4096  # tokens: each expert slice is read once a chunk
CACHE_POLICIES = ("lfu", "lru")
DENSE_POLICIES = ("auto", "mmap", "warm", "anon")
SWEEP_METHODS = ("auto", "direct", "advice")
PREFETCH_METHODS = ("advice", "parallel-advice", "read")
MAX_IO_THREADS = 8


def _refuse(name, value, expected):
    raise ConfigError(f"{name}: found {value!r}, expected {expected}")


def integer(name, value, low, high=None):
    """`value` as an int, low to high. ConfigError names what was found and expected."""
    expected = f"an integer of at least {low}" if high is None else f"an integer {low} to {high}"
    if isinstance(value, bool):
        _refuse(name, value, expected)
    try:
        number = operator.index(value)
    except TypeError:
        _refuse(name, value, expected)
    if number < low or (high is not None and number > high):
        _refuse(name, value, expected)
    return number


def _number(name, value, low, high=math.inf):
    expected = f"a finite number from {low:g}" + (f" to {high:g}" if high < math.inf else " up")
    try:
        number = float(value)
    except (TypeError, ValueError):
        _refuse(name, value, expected)
    if isinstance(value, (bool, str)) or not math.isfinite(number) or not low <= number <= high:
        _refuse(name, value, expected)
    return number


def _decimal(value):
    """A number that came as text, from a command line; other text stays as it is."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _size(name, value):
    """Bytes of a number, or of text such as "900M", "4G" or "1.5 GB"; decimal units."""
    text = str(value).strip().upper().removesuffix("B").strip()
    factor = {"K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}.get(text[-1:], 1)
    number = _decimal(text[:-1] if factor > 1 else text)
    if isinstance(number, str) or not 0 < number < math.inf:
        _refuse(name, value, "bytes, or a size such as 900M or 4G")
    return int(number * factor)


def _flag(name, value):
    if not isinstance(value, bool):
        _refuse(name, value, "True or False")


def _one_of(name, value, allowed):
    if value not in allowed:
        _refuse(name, value, "one of " + ", ".join(allowed))


def _check_names(given, names):
    """Refuse a setting that does not exist; names the nearest one that does."""
    for name in given:
        if name not in names:
            import difflib  # only for this message: --help is to be quick

            close = difflib.get_close_matches(name, names, 1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise ConfigError(
                f"{name}: found an unknown setting, expected one of "
                f"{', '.join(sorted(names))}{hint}"
            )


@dataclass(frozen=True)
class EngineConfig:
    """How a model is loaded and run. Only n_expert_used changes a logit.

    n_ctx : int or None      tokens a timeline can hold; None: min(the model's own, 4096)
    n_threads : int or None  compute threads; None: min(affinity, cgroup quota, physical cores).
                             No environment variable is consulted.
    n_ubatch : int or None   tokens computed together in a prompt; bounded by n_ctx; None: 4096
    swa_full : bool          layers with a sliding window keep keys and values of the whole context too: more memory, and a
                             timeline can be cut back to anywhere without computing it again
    moe_mode : str           how expert bytes reach the kernels: "auto", or a mode of moeengine.supply;
                             `mmap` leaves it to the page cache
    cache_mb : "auto" or number   megabytes (1e6 bytes) for experts in `stream`; 0: none is kept
    cache_policy : str       which expert the cache gives up: "lru", the one unused for longest, or "lfu", the rarest that
                             the last tokens did not use, as far as that has found more than "lru" would have
    force_cache : bool       accept a cache that one token alone overturns
    io_threads : int         threads that read expert bytes, 1 to 8
    sweep_min_tokens : int   passes of at least so many tokens sweep over the experts of a layer
    sweep_method : str       how `sweep-prefill` brings them: "direct" reads past the page cache into a small ring,
                             "advice" announces to the page cache (WILLNEED, DONTNEED), "auto" is what a probe
                             of the file's disk at load finds faster
    sweep_ahead, sweep_behind : int   experts announced before use and kept after use, with advice
    prefetch_method : str    how `prefetch` brings slices in: "advice" by the computing thread,
                             "parallel-advice" by the readers, "read" into scratch by the readers
    prefetch_layers : int    `stream`: read ahead what so many later layers' routers would choose, 0 to 4
    warm_experts : str       `stream`: file of `trace --save`; its experts are read into the cache at load
    dense_weights : str      all but the routed experts: "mmap" leaves them to the page cache, "warm" touches them
                             once at load, "anon" reads them into memory that no other traffic can evict;
                             "auto" is "anon" where experts are streamed and there is room, else "mmap"
    release_mmap : bool      give the file's mapping up once no weight is read from it any more
    expert_map : str         file of `expert-map`: the ranges of the experts, checked against the open model
    moe_stats : bool         log a line for every expert tensor of every pass
    memory_budget : int      bytes for everything together, also as text such as "4G"; None: what is there
    n_expert_used : int      LOSSY: experts for each token in place of the model's own number
    drop_cold_experts : float   LOSSY: of few tokens, leave out experts that would cost a read and whose
                             weight is below this share of an even one, 0 to 1; 0: none
    force_pre : str or None  pre-tokenizer to use in place of the one the file names
    """

    n_ctx: int | None = None
    n_threads: int | None = None
    n_ubatch: int | None = None
    swa_full: bool = False
    moe_mode: str = "auto"
    cache_mb: str | float = "auto"
    cache_policy: str = "lfu"
    force_cache: bool = False
    io_threads: int = 4
    sweep_min_tokens: int = 32
    sweep_method: str = "auto"
    sweep_ahead: int = 2
    sweep_behind: int = 2
    prefetch_method: str = "advice"
    prefetch_layers: int = 0
    warm_experts: str | None = None
    dense_weights: str = "auto"
    release_mmap: bool = False
    expert_map: str | None = None
    moe_stats: bool = False
    memory_budget: int | None = None
    n_expert_used: int | None = None
    drop_cold_experts: float = 0.0
    force_pre: str | None = None

    def __post_init__(self):
        for name, high in (
            ("n_ctx", N_CTX_MAX),
            ("n_threads", 1024),
            ("n_ubatch", N_CTX_MAX),
            ("n_expert_used", 2**16),
        ):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, integer(name, getattr(self, name), 1, high))
        if not isinstance(self.moe_mode, str):
            _refuse("moe_mode", self.moe_mode, "auto or the name of a mode")
        if self.cache_mb != "auto":
            object.__setattr__(self, "cache_mb", _number("cache_mb", _decimal(self.cache_mb), 0))
        _one_of("cache_policy", self.cache_policy, CACHE_POLICIES)
        for name in ("force_cache", "release_mmap", "moe_stats", "swa_full"):
            _flag(name, getattr(self, name))
        object.__setattr__(self, "drop_cold_experts", _number("drop_cold_experts", self.drop_cold_experts, 0, 1))
        _one_of("dense_weights", self.dense_weights, DENSE_POLICIES)
        if self.memory_budget is not None:
            object.__setattr__(self, "memory_budget", _size("memory_budget", self.memory_budget))
        _one_of("sweep_method", self.sweep_method, SWEEP_METHODS)
        _one_of("prefetch_method", self.prefetch_method, PREFETCH_METHODS)
        for name, low, high in (
            ("io_threads", 1, MAX_IO_THREADS),
            ("sweep_min_tokens", 2, None),
            ("sweep_ahead", 0, 1024),
            ("sweep_behind", 0, 1024),
            ("prefetch_layers", 0, 4),
        ):
            object.__setattr__(self, name, integer(name, getattr(self, name), low, high))

    @classmethod
    def of(cls, settings):
        """From a dict of field names. ConfigError: unknown name, or a value out of range."""
        _check_names(settings, [f.name for f in fields(cls)])
        return cls(**settings)


@dataclass(frozen=True)
class SamplingParams:
    """How the next token is drawn. The steps run in the order of the fields below.

    logit_bias : dict        token id -> number added to its logit; -inf bans the token
    repeat_penalty : float   logits of recent tokens are divided by it (multiplied where negative);
                             1 = off
    frequency_penalty, presence_penalty : float
                             subtracted from a recent token's logit: once an occurrence, once in all
    repeat_last_n : int      how many of the last tokens, prompt included, the penalties look at;
                             -1 = the whole context, 0 = penalties off
    top_k : int              keep the k best; 0 = all
    top_p : float            keep the fewest best whose probabilities sum to top_p; 1 = all
    min_p : float            keep those at least min_p times as likely as the best; 0 = all
    temperature : float      logits are divided by it before the draw; 0 = the best, ties to the
                             lowest id
    seed : int or None       equal seeds give equal draws; None: random, told in the result
    """

    logit_bias: dict = field(default_factory=dict)
    repeat_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repeat_last_n: int = 64
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    temperature: float = 0.8
    seed: int | None = None

    def __post_init__(self):
        checked = {
            "logit_bias": _logit_bias(self.logit_bias),
            "repeat_penalty": _number("repeat_penalty", self.repeat_penalty, 1e-6, 1e6),
            "frequency_penalty": _number("frequency_penalty", self.frequency_penalty, -1e6, 1e6),
            "presence_penalty": _number("presence_penalty", self.presence_penalty, -1e6, 1e6),
            "repeat_last_n": integer("repeat_last_n", self.repeat_last_n, -1),
            "top_k": integer("top_k", self.top_k, 0),
            "top_p": _number("top_p", self.top_p, 0, 1),
            "min_p": _number("min_p", self.min_p, 0, 1),
            "temperature": _number("temperature", self.temperature, 0),
        }
        if self.seed is not None:
            checked["seed"] = integer("seed", self.seed, 0, 2**64 - 1)
        for name, value in checked.items():
            object.__setattr__(self, name, value)


def _logit_bias(value):
    if not isinstance(value, dict):
        _refuse("logit_bias", value, "a dict of token id -> number")
    bias = {}
    for token, number in value.items():
        token = integer("logit_bias", token, 0)
        if number == -math.inf:
            bias[token] = -math.inf
        else:
            bias[token] = _number(f"logit_bias[{token}]", number, -1e9, 1e9)
    return bias


def _stop_strings(value):
    expected = "a text or a list of texts, none of them empty"
    if isinstance(value, str):
        value = (value,)
    if not isinstance(value, (list, tuple)):
        _refuse("stop", value, expected)
    if not all(isinstance(s, str) and s for s in value):
        _refuse("stop", value, expected)
    return tuple(dict.fromkeys(value))


@dataclass(frozen=True)
class GenerationParams:
    """One request for text, beside its prompt.

    max_tokens : int         new tokens at most; 0 = only process the prompt, -1 = until the context
                             is full
    stop : str or list       texts that end the answer; they and what follows are left out
    logprobs : int           how many alternatives to report a token, with their log-probabilities;
                             never changes what is drawn
    ignore_eos : bool        go on after an end-of-generation token
    add_special : bool       put the model's BOS (and EOS, where it wants one) around a text prompt
    parse_special : bool     text of a prompt that spells a control token becomes that token;
                             never applies to what users say in a chat
    chat_template : str or None  Jinja2 text to use in place of the model's own
    template_variables : dict    further variables for the chat template, e.g. enable_thinking
    sampling : SamplingParams
    """

    max_tokens: int = 256
    stop: tuple = ()
    logprobs: int = 0
    ignore_eos: bool = False
    add_special: bool = True
    parse_special: bool = True
    chat_template: str | None = None
    template_variables: dict = field(default_factory=dict)
    sampling: SamplingParams = SamplingParams()

    def __post_init__(self):
        object.__setattr__(self, "max_tokens", integer("max_tokens", self.max_tokens, -1))
        object.__setattr__(self, "logprobs", integer("logprobs", self.logprobs, 0, 1000))
        object.__setattr__(self, "stop", _stop_strings(self.stop))
        if not isinstance(self.chat_template, (str, type(None))):
            _refuse("chat_template", self.chat_template, "a text")
        variables = self.template_variables
        if not isinstance(variables, dict) or not all(isinstance(k, str) for k in variables):
            _refuse("template_variables", variables, "a dict with names as keys")
        if not isinstance(self.sampling, SamplingParams):
            _refuse("sampling", self.sampling, "SamplingParams")

    @classmethod
    def of(cls, settings):
        """From one flat dict that may name fields of this class and of SamplingParams.

        None means the default. ConfigError: unknown name, or a value out of range.
        """
        sampling = {f.name for f in fields(SamplingParams)}
        _check_names(settings, {f.name for f in fields(cls)} | sampling)
        given = {k: v for k, v in settings.items() if k in sampling and v is not None}
        rest = {k: v for k, v in settings.items() if k not in sampling and v is not None}
        if given and "sampling" in rest:
            raise ConfigError(
                f"sampling: found it together with {', '.join(given)}, expected one or the other"
            )
        return cls(**rest, **({"sampling": SamplingParams(**given)} if given else {}))
