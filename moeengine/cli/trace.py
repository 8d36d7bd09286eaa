"""`moeengine trace`: which experts a text uses, layer by layer, and how often a cache would have had them."""

import json
import sys

import numpy as np

from moeengine.cli import options, output
from moeengine.errors import ConfigError
from moeengine.loader.whole_file import check_writable, whole_file

SHARES = (0.25, 0.5)  # of all experts, that a cache might hold
POLICIES = ("lfu", "lru")


def add_arguments(parser):
    options.add_text_options(parser, "text")
    options.add_model_options(parser)
    parser.add_argument(
        "-n", "--max-tokens", type=int, default=64, metavar="N",
        help="tokens to generate after the text and to trace too (default: 64)",
    )  # fmt: skip
    options.add_machine_options(parser)
    options.add_supply_options(parser)
    group = parser.add_argument_group("output")
    group.add_argument(
        "--save", metavar="FILE", help="experts by use, for --warm-experts (default: not written)"
    )
    group.add_argument(
        "--plot", metavar="PNG", help="draw it; needs matplotlib (default: not drawn)"
    )
    group.add_argument(
        "-v", "--verbose", action="store_true", help="tell what is done (default: off)"
    )


def run(args):
    from moeengine.engine import Engine

    _check_outputs(args)
    text = options.read_text(args, sys.stdin)
    passes = []
    with output.logging_to_stderr(args.verbose, args.moe_stats):
        with Engine(options.model_path(args), **options.engine_settings(args)) as engine:
            layers, n_expert = engine.moe_layers, engine.hparams.n_expert
            if not layers:
                raise ConfigError("trace: the model has no experts")
            engine.on_routing(lambda n_past, tokens, experts: passes.append(experts.copy()))
            n_prompt = engine.complete(text, max_tokens=args.max_tokens, temperature=0, ignore_eos=True).n_prompt
    chosen = np.concatenate(passes, axis=1)  # (layers, tokens, used)
    counts = np.stack([np.bincount(rows[rows >= 0], minlength=n_expert) for rows in chosen])
    rates = {(share, policy): hit_rates(chosen, n_expert, share, policy) for share in SHARES for policy in POLICIES}
    _print(layers, chosen, counts, rates)
    if args.save is not None:
        _save(args.save, layers, counts)
    if args.plot is not None:
        from moeengine.cli.trace_plot import draw

        draw(args.plot, layers, chosen, counts, rates, n_prompt)
    return 0


def _check_outputs(args):
    """Says before any work what cannot be written at its end: OSError, ConfigError."""
    if args.save is not None:
        check_writable(args.save)
    if args.plot is not None:
        from moeengine.cli.trace_plot import check_plot

        check_plot(args.plot)
        check_writable(args.plot)


def hit_rates(chosen, n_expert, share, policy):
    """Share of the experts of each token that one cache for all layers would hold, fed token by token.

    chosen : int32 (L, T, A)
    share : float              of all experts; at least those of one token
    policy : {"lfu", "lru"}

    Returns
    -------
    float64 (T,)
    """
    from moeengine.supply.replay import Replay

    n_layers, _, n_used = chosen.shape
    n_slots = max(n_layers * n_used, int(share * n_layers * n_expert))
    hits = Replay(n_layers, n_expert, n_used, n_slots, policy).run(np.ascontiguousarray(chosen, np.int32))
    return hits / (n_layers * n_used)


def _print(layers, chosen, counts, rates):
    again = (chosen[:, 1:, :, None] == chosen[:, :-1, None, :]).any(-1)
    repeats = again.sum((1, 2)) / max(1, again[0].size)  # one token alone has none before it
    for il, row, repeat in zip(layers, counts, repeats):
        top = np.sort(row)[::-1]
        share = top[: max(1, len(top) // 4)].sum() / max(1, row.sum())
        output.write(
            f"layer {il:3d}  {int((row > 0).sum()):4d} of {len(row)} experts used"
            f"  busiest quarter {100 * share:3.0f} %  also used by the token before {100 * repeat:3.0f} %\n"
        )
    for (share, policy), rate in rates.items():
        output.write(
            f"a cache of {100 * share:.0f} % of the experts ({policy}) holds {100 * rate.mean():.0f} % of what is used\n"
        )


def _save(path, layers, counts):
    used = [(int(n), il, ie) for il, row in zip(layers, counts) for ie, n in enumerate(row) if n]
    experts = [[il, ie, n] for n, il, ie in sorted(used, key=lambda u: (-u[0], u[1], u[2]))]
    with whole_file(path) as file:
        file.write(json.dumps({"experts": experts}).encode())
