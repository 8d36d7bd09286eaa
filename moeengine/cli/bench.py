"""`moeengine bench`: tokens a second of a model on this machine, prompt and answer apart."""

import time
from statistics import median

import numpy as np

from moeengine.cli import options, output
from moeengine.errors import ConfigError, ContextOverflowError


def add_arguments(parser):
    options.add_model_options(parser)
    group = parser.add_argument_group("bench")
    group.add_argument(
        "-p", "--prefill", type=int, nargs="*", default=[512], metavar="N",
        help="tokens of a prompt computed at once (default: 512)",
    )  # fmt: skip
    group.add_argument(
        "-n", "--decode", type=int, default=64, metavar="N", help="tokens one by one (default: 64)"
    )
    group.add_argument(
        "-d", "--depth", type=int, nargs="*", default=[0], metavar="N",
        help="tokens that lie before those decoded (default: 0)",
    )  # fmt: skip
    group.add_argument(
        "-r", "--rounds", type=int, default=3, metavar="N", help="how often each (default: 3)"
    )
    options.add_machine_options(parser)
    options.add_supply_options(parser)
    output.add_output_options(parser, what="every test")


def run(args):
    from moeengine.engine import Engine

    for name, low in (("prefill", 1), ("depth", 0), ("decode", 0), ("rounds", 1)):
        for n in np.atleast_1d(getattr(args, name)).tolist():
            if n < low:
                raise ConfigError(f"{name}: found {n}, expected at least {low}")
    longest = max([1, *args.prefill, *(d + args.decode for d in args.depth)])
    settings = {"n_ctx": longest} | options.engine_settings(args)
    with output.logging_to_stderr(args.verbose, args.moe_stats):
        with Engine(options.model_path(args), **settings) as engine:
            stats = engine.stats()
            if engine.n_ctx < longest:
                raise ContextOverflowError(f"context: found {longest} tokens to run, expected at most {engine.n_ctx}")
            if not args.json:
                output.write(f"{stats['arch']}, {stats['isa']}, {stats['n_threads']} threads, {stats['moe_mode']}\n")
            for test, n, rates in measure(engine, args.prefill, args.decode, args.depth, args.rounds):
                _show(args, test, n, rates)
    return 0


def measure(engine, prefill, decode, depth, rounds):
    """Yields (test, n tokens a round, list of tokens a second) for random tokens, the same every time."""
    tokens = np.random.default_rng(1).integers(0, engine.hparams.n_vocab, engine.n_ctx).tolist()
    progress = output.Progress()
    with engine.session() as session:
        for n in prefill:
            session.rewind(0)
            session.eval(tokens[: min(n, 32)])  # memory that the first pass touches
            rates = []
            for i in range(rounds):
                progress.show(f"prefill {n}, round {i + 1} of {rounds}")
                session.rewind(0)
                start = time.perf_counter()
                session.eval(tokens[:n])
                rates.append(n / (time.perf_counter() - start))
            progress.clear()
            yield f"prefill {n}", n, rates
        for d in depth if decode else ():
            progress.show(f"decode at {d}: context")
            n_past, rates = min(max(1, d), engine.n_ctx), []
            session.rewind(0)
            session.eval(tokens[:n_past])
            for i in range(rounds):
                progress.show(f"decode at {d}, round {i + 1} of {rounds}")
                session.rewind(n_past - 1)  # a context that cannot be cut back is computed again here, not while the clock runs
                session.eval(tokens[n_past - 1 : n_past])
                start = time.perf_counter()
                for token in tokens[-decode:]:
                    if session.n_past == session.n_ctx:
                        session.rewind(n_past)
                    session.eval([token])
                rates.append(decode / (time.perf_counter() - start))
            progress.clear()
            yield f"decode at {d}", decode, rates


def _show(args, test, n, rates):
    if args.json:
        output.json_line({"test": test, "n_tokens": n, "tok_s": rates, "median_tok_s": median(rates)})
    else:
        output.write(f"{test:18s} {median(rates):9.2f} tok/s  ({min(rates):.2f} to {max(rates):.2f})\n")
