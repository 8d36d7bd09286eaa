"""sweep-prefill: prompts pass over the experts of each layer in file order; single tokens use the page cache."""

from moeengine.supply.advice import AdvisedSupply
from moeengine.supply.direct import DirectSupply

SETTINGS = ("io_threads", "sweep_ahead", "sweep_behind", "sweep_method", "sweep_min_tokens")


def make(settings):
    """settings.sweep_method: "direct" reads into a ring, "advice" announces ahead and drops behind."""
    if settings.sweep_method == "advice":
        return AdvisedSupply(
            sweep_from=settings.sweep_min_tokens,
            n_ahead=settings.sweep_ahead,
            n_behind=settings.sweep_behind,
        )
    return DirectSupply(
        io_threads=settings.io_threads,
        cache_bytes=0,
        plain_below=settings.sweep_min_tokens,
        sweep_from=settings.sweep_min_tokens,
    )
