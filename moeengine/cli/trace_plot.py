"""The picture of `trace --plot`: where the tokens of a text go, and what a cache would have had of it."""

import os

import numpy as np

from moeengine.errors import ConfigError
from moeengine.loader.whole_file import whole_file

COLOURS = {"lfu": "#0b5fa5", "lru": "#d1720a"}
DASHES = ("-", (0, (4, 2)), ":")
INK, GRID = "#333333", "#dddddd"
MAX_ROWS = 24  # layer numbers on an axis


def pyplot():
    """matplotlib.pyplot without a screen. ConfigError: it is not installed."""
    try:
        import matplotlib
    except ImportError:
        raise ConfigError("--plot: found no matplotlib, expected it to be installed (moeengine[plot])") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot as module

    return module


def check_plot(path):
    """ConfigError where matplotlib is missing, or has no format for the ending of `path`."""
    formats = sorted(pyplot().figure().canvas.get_supported_filetypes())
    pyplot().close("all")
    if _format(path) not in formats:
        raise ConfigError(f"--plot {path}: found no such format, expected one of {', '.join(formats)} as its ending")


def _format(path):
    return os.path.splitext(path)[1][1:].lower() or "png"


def draw(path, layers, chosen, counts, rates, n_prompt):
    """Write the picture.

    Parameters
    ----------
    layers : list of int             numbers of the layers with experts
    chosen : int32 (L, T, A)
    counts : int64 (L, X)            uses of each expert
    rates : dict of (share, policy) -> float64 (T,)
    n_prompt : int                   tokens of the text; the others were generated
    """
    plt = pyplot()
    style = {"font.size": 10, "axes.edgecolor": INK, "axes.titleweight": "bold", "axes.titlesize": 11,
             "axes.titlelocation": "left", "axes.spines.top": False, "axes.spines.right": False}  # fmt: skip
    with plt.rc_context(style):
        height = 4.6 + min(6.0, max(1.6, 0.22 * len(layers)))
        figure = plt.figure(figsize=(11, height), constrained_layout=True)
        upper, lower = figure.subfigures(2, 1, height_ratios=(height - 4.0, 4.0))
        uses, distinct = upper.subplots(1, 2, sharey=True, width_ratios=(4, 1))
        _uses(figure, uses, layers, counts)
        _distinct(distinct, counts)
        _rates(lower.subplots(), rates, n_prompt)
        figure.suptitle(
            f"{chosen.shape[1]} tokens, {chosen.shape[2]} of {counts.shape[1]} experts each in {len(layers)} layers",
            x=0.01, ha="left", color=INK,
        )  # fmt: skip
        with whole_file(path) as file:
            figure.savefig(file, format=_format(path), dpi=130)
        plt.close(figure)


def _uses(figure, axes, layers, counts):
    """How unevenly: share of a layer's uses that its experts have, busiest first."""
    share = 100 * np.sort(counts, axis=1)[:, ::-1] / np.maximum(1, counts.sum(1, keepdims=True))
    image = axes.imshow(share, aspect="auto", cmap="viridis", vmin=0, interpolation="nearest")
    step = -(-len(layers) // MAX_ROWS)
    axes.set_yticks(range(0, len(layers), step), layers[::step])
    axes.set(xlabel="experts of the layer, busiest first", ylabel="layer", title="share of the uses")
    bar = figure.colorbar(image, ax=axes, pad=0.01)
    bar.set_label(f"% (even: {100 / counts.shape[1]:.1f})")
    bar.outline.set_visible(False)


def _distinct(axes, counts):
    """How many experts of each layer were used at all."""
    used = (counts > 0).sum(1)
    axes.barh(range(len(used)), used, color=COLOURS["lfu"], height=0.8)
    axes.set(xlabel=f"of {counts.shape[1]}", title="experts used", xlim=(0, counts.shape[1] * 1.02))
    axes.tick_params(labelleft=False, left=False)
    axes.grid(axis="x", color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)


def _rates(axes, rates, n_prompt):
    """Hit rate over the tokens, by cache size and policy, each line named at its end."""
    n_tokens = len(next(iter(rates.values())))
    window = max(1, min(16, n_tokens // 8))
    shares = sorted({share for share, _ in rates})
    for (share, policy), rate in sorted(rates.items(), reverse=True):  # lru under lfu, which often covers it
        smooth = np.convolve(rate, np.ones(window) / window, "valid")
        label = f"{policy}, {100 * share:.0f} % of the experts: {100 * rate.mean():.0f} % hits"
        axes.plot(np.arange(window - 1, n_tokens), 100 * smooth, color=COLOURS[policy], lw=1.4 if policy == "lfu" else 3.4,
                  alpha=1 if policy == "lfu" else 0.55, linestyle=DASHES[shares.index(share) % len(DASHES)], label=label)  # fmt: skip
    if 0 < n_prompt < n_tokens:
        axes.axvline(n_prompt, color=INK, lw=0.8)
        axes.annotate("generated from here", (n_prompt, 1), (4, -2), xycoords=("data", "axes fraction"),
                      textcoords="offset points", va="top", color=INK, fontsize=9)  # fmt: skip
    axes.set(xlabel="token", ylabel=f"hits, % (mean of {window} tokens)", ylim=(0, 102), xlim=(0, max(1, n_tokens - 1)),
             title="what a cache would have held")  # fmt: skip
    axes.grid(color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.legend(frameon=False, ncols=2, loc="lower right")
