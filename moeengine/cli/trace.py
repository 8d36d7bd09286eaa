"""`moeengine trace`: which experts a text uses, layer by layer, and how often a cache would have had them."""

import json
import sys

import numpy as np

from moeengine.cli import options, output
from moeengine.errors import ConfigError


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

    text = options.read_text(args, sys.stdin)
    passes = []
    with output.logging_to_stderr(args.verbose, args.moe_stats):
        with Engine(options.model_path(args), **options.engine_settings(args)) as engine:
            layers, n_expert = engine.moe_layers, engine.hparams.n_expert
            if not layers:
                raise ConfigError("trace: the model has no experts")
            engine.on_routing(lambda n_past, tokens, experts: passes.append(experts.copy()))
            engine.generate(text, max_tokens=args.max_tokens, temperature=0, ignore_eos=True)
    chosen = np.concatenate(passes, axis=1)  # (layers, tokens, used)
    counts = np.stack([np.bincount(rows.reshape(-1), minlength=n_expert) for rows in chosen])
    rates = {share: hit_rates(chosen, n_expert, share) for share in (0.25, 0.5)}
    _print(layers, chosen, counts, rates)
    if args.save:
        _save(args.save, layers, counts)
    if args.plot:
        _plot(args.plot, layers, counts, rates)
    return 0


def hit_rates(chosen, n_expert, share):
    """Share of the experts of each token that a cache would hold, one LRU cache a layer of share * n_expert.

    chosen : int32 (L, T, A)
    Returns float64 (T,).
    """
    room = max(chosen.shape[2], int(share * n_expert))
    hits = np.zeros(chosen.shape[1])
    for layer in chosen:
        held = {}  # in the order of use
        for t, ids in enumerate(layer):
            hits[t] += sum(int(i) in held for i in ids)
            for i in ids:
                held.pop(int(i), None)
                held[int(i)] = True
            while len(held) > room:
                del held[next(iter(held))]
    return hits / (chosen.shape[0] * chosen.shape[2])


def _print(layers, chosen, counts, rates):
    repeats = (chosen[:, 1:, :, None] == chosen[:, :-1, None, :]).any(-1).mean((1, 2))
    for il, row, repeat in zip(layers, counts, repeats):
        top = np.sort(row)[::-1]
        share = top[: max(1, len(top) // 4)].sum() / row.sum()
        output.write(
            f"layer {il:3d}  {int((row > 0).sum()):4d} of {len(row)} experts used"
            f"  busiest quarter {100 * share:3.0f} %  also used by the token before {100 * repeat:3.0f} %\n"
        )
    for share, rate in rates.items():
        output.write(
            f"an LRU cache of {100 * share:.0f} % of the experts holds {100 * rate.mean():.0f} % of what is used\n"
        )


def _save(path, layers, counts):
    used = [(int(n), il, ie) for il, row in zip(layers, counts) for ie, n in enumerate(row) if n]
    experts = [[il, ie, n] for n, il, ie in sorted(used, key=lambda u: (-u[0], u[1], u[2]))]
    with open(path, "w", encoding="utf-8") as f:
        json.dump({"experts": experts}, f)


def _plot(path, layers, counts, rates):
    try:
        import matplotlib
    except ImportError:
        raise ConfigError("--plot: found no matplotlib, expected it to be installed") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (upper, lower) = pyplot.subplots(2, figsize=(10, 8), constrained_layout=True)
    image = upper.imshow(np.sort(counts, axis=1)[:, ::-1], aspect="auto", cmap="viridis")
    upper.set_yticks(range(len(layers)), layers)
    upper.set(xlabel="experts, most used first", ylabel="layer", title="uses of each expert")
    figure.colorbar(image, ax=upper)
    for share, rate in rates.items():
        smooth = np.convolve(rate, np.ones(8) / 8, "same") if len(rate) >= 8 else rate
        lower.plot(smooth, label=f"cache of {100 * share:.0f} % of the experts")
    lower.set(xlabel="token", ylabel="hit rate (LRU, mean of 8 tokens)", ylim=(0, 1))
    lower.legend()
    figure.savefig(path)
