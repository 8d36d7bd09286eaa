"""What commands print with: JSON lines, a progress line on terminals, byte counts, the log."""

import contextlib
import json
import logging
import math
import sys
import time

PROGRESS_EVERY_S = 0.1
CLEAR_LINE = "\r\x1b[K"
STDOUT = "standard output"


def write(text):
    """Text to stdout, at once. OSError names standard output as its file."""
    with _named():
        sys.stdout.write(text)
        sys.stdout.flush()


def flush():
    """What stdout still holds. OSError as `write`."""
    with _named():
        sys.stdout.flush()


@contextlib.contextmanager
def _named():
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, STDOUT) from None


def note(text):
    """A line to stderr."""
    print(text, file=sys.stderr, flush=True)


def json_text(value):
    """`value` as one line of JSON; numbers that JSON has no word for become null."""
    return json.dumps(_finite(value), ensure_ascii=False, allow_nan=False, default=str)


def json_line(value):
    """`json_text` of `value` on stdout."""
    write(json_text(value) + "\n")


def _finite(value):
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def shown_count(n):
    """'30.5 B': of weights, in thousands, millions and billions."""
    for unit in ("", " k", " M"):
        if abs(n) < 1000:
            return f"{n:.3g}{unit}"
        n /= 1000
    return f"{n:.3g} B"


class Progress:
    """One line on stderr that changes in place; nothing at all where stderr is no terminal."""

    def __init__(self):
        self._is_on = sys.stderr.isatty()
        self._is_shown = False
        self._next_s = 0.0

    def show(self, text):
        if self._is_on and time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + PROGRESS_EVERY_S
            self._is_shown = True
            sys.stderr.write(CLEAR_LINE + text)
            sys.stderr.flush()

    def tokens(self, n_done, n_total):
        """For `progress=` of the engine's calls."""
        if n_done < n_total:
            self.show(f"prompt: {n_done} of {n_total} tokens")
        else:
            self.clear()

    def clear(self):
        if self._is_shown:
            self._is_shown = False
            self._next_s = 0.0
            sys.stderr.write(CLEAR_LINE)
            sys.stderr.flush()


@contextlib.contextmanager
def logging_to_stderr(verbose, moe_stats=False):
    """The library's log on stderr: warnings, with `verbose` all that it does, with `moe_stats` expert tensors."""
    logger = logging.getLogger("moeengine")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO if verbose else logging.WARNING)
    nodes = logging.getLogger("moeengine.nodes")
    nodes.setLevel(logging.INFO if moe_stats else logging.NOTSET)
    try:
        yield
    finally:
        nodes.setLevel(logging.NOTSET)
        logger.removeHandler(handler)
        logger.setLevel(level)


def add_output_options(parser, *, what):
    """--json and -v; returns the group."""
    group = parser.add_argument_group("output")
    group.add_argument(
        "--json", action="store_true", help=f"{what} as one JSON object a line (default: off)"
    )
    group.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="tell on standard error what is done (default: off)",
    )
    return group


def summary(answer):
    """One line about a Completion."""
    n_computed = answer.n_prompt - answer.n_reused
    parts = [f"prompt {answer.n_prompt} tokens"]
    if answer.n_reused:
        parts[0] += f", {answer.n_reused} reused"
    if answer.prefill_s > 0:
        parts[0] += f", {n_computed / answer.prefill_s:.1f} tok/s"
    parts.append(f"answer {answer.n_generated} tokens")
    if answer.n_generated > 1 and answer.decode_s > 0:
        parts[1] += f", {(answer.n_generated - 1) / answer.decode_s:.1f} tok/s"
    parts.append(f"ended by {answer.finish_reason}")
    return "; ".join([*parts, f"seed {answer.seed}"])


def supply_summary(stats):
    """Lines about Engine.stats(): the mode, and a phase its time, experts found in memory, bytes read."""
    lines = [f"supply {stats['moe_mode_why'] or stats['moe_mode']}"]
    if stats.get("is_lossy"):
        lines.append("LOSSY: not all the experts that the model asks for are used")
    for name in ("prefill", "decode"):
        phase = stats.get("supply", {}).get(name)
        n_tokens = stats[f"n_{name}_tokens"]
        if not phase or not n_tokens:
            continue
        parts = [f"{name} {n_tokens} tokens: compute {phase['compute_s']:.2f} s"]
        parts.append(f"waiting for bytes {phase['wait_s']:.2f} s, upkeep {phase['upkeep_s']:.2f} s")
        found = phase["n_hits"] + phase["n_misses"]
        if found:
            parts.append(f"{phase['n_hits']} of {found} experts in memory")
            parts.append(f"{phase['bytes_read'] / n_tokens / 1e6:.1f} MB read a token")
        lines.append("; ".join(parts))
    return "\n".join(lines)
