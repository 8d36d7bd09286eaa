"""`moeengine perplexity`: how well a model foretells a text."""

import math
import sys

import numpy as np

from moeengine.cli import options, output
from moeengine.errors import ConfigError

ROWS = 64  # logits in hand at once


def add_arguments(parser):
    options.add_text_options(parser, "text")
    options.add_model_options(parser)
    parser.add_argument(
        "--stride", type=int, metavar="N",
        help="tokens from one window to the next (default: a whole window, -c tokens)",
    )  # fmt: skip
    parser.add_argument(
        "--from", dest="scored_from", type=int, metavar="N",
        help="tokens at the start of a window that only give context (default: half of it)",
    )  # fmt: skip
    options.add_machine_options(parser)
    options.add_supply_options(parser)
    output.add_output_options(parser, what="every window")


def run(args):
    from moeengine.engine import Engine

    text = options.read_text(args, sys.stdin)
    settings = {"n_ctx": 512} | options.engine_settings(args)
    with output.logging_to_stderr(args.verbose, args.moe_stats):
        with Engine(options.model_path(args), **settings) as engine:
            _run(engine, text, args)
    return 0


def _run(engine, text, args):
    n_ctx, bos = engine.n_ctx, engine.tokenizer.bos_id if engine.tokenizer.add_bos else None
    tokens = engine.tokenize(text)
    if n_ctx < 2:
        raise ConfigError("ctx: found 1, expected at least 2 tokens in a window: one to see and one to foretell")
    first = min(n_ctx // 2, n_ctx - 2) if args.scored_from is None else args.scored_from
    stride = n_ctx if args.stride is None else args.stride
    if not 0 <= first < n_ctx - 1:
        raise ConfigError(f"from: found {first}, expected 0 to {n_ctx - 2}, two less than the window")
    if not 1 <= stride:
        raise ConfigError(f"stride: found {stride}, expected at least 1")
    if len(tokens) < n_ctx:
        raise ConfigError(
            f"text: found {len(tokens)} tokens, expected at least a window of {n_ctx}; give a smaller -c"
        )
    starts = range(0, len(tokens) - n_ctx + 1, stride)
    progress, losses = output.Progress(), []
    for i, start in enumerate(starts):
        progress.show(f"window {i + 1} of {len(starts)}")
        losses.append(window_losses(engine, tokens[start : start + n_ctx], first, bos))
        mean, error = _summed(losses)
        if args.json:
            progress.clear()
            output.json_line({"window": i, "start": start, "n_scored": sum(map(len, losses)),
                              "nll": mean, "perplexity": math.exp(mean)})  # fmt: skip
    progress.clear()
    if not args.json:
        output.write(
            f"perplexity {math.exp(mean):.4f} +- {math.exp(mean) * error:.4f}"
            f"  ({len(starts)} windows of {n_ctx} tokens, {sum(map(len, losses))} tokens scored)\n"
        )


def window_losses(engine, window, first, bos):
    """-log p of every token of a window that follows position `first` or a later one.

    The window's first token is taken for `bos` where that is not None, as the model was trained to see it.
    Returns float64 (len(window) - 1 - first,).
    """
    window = window if bos is None else [bos, *window[1:]]
    logits = engine.logits(window[:-1])[first:]
    wanted = np.array(window[first + 1 :])
    losses = np.empty(len(wanted))
    for i in range(0, len(wanted), ROWS):  # float64 copies of a few rows only
        rows = logits[i : i + ROWS].astype(np.float64)
        rows -= rows.max(1, keepdims=True)
        picked = rows[np.arange(len(rows)), wanted[i : i + ROWS]]
        losses[i : i + ROWS] = np.log(np.exp(rows).sum(1)) - picked
    return losses


def _summed(losses):
    """Mean of -log p over all tokens, and its standard error."""
    every = np.concatenate(losses)
    error = every.std(ddof=1) / math.sqrt(len(every)) if len(every) > 1 else math.nan
    return every.mean(), error
