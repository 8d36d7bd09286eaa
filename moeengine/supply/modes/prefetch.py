"""prefetch: the slices that a router chose are brought into the page cache before the layer computes."""

from moeengine.supply.advice import AdvisedSupply

MOST_TOKENS = 64  # of a pass; more use nearly every expert, which are then announced one after another
AHEAD = 8  # experts announced in larger passes: the map has no read-ahead of its own
SETTINGS = ("io_threads", "prefetch_method")


def make(settings):
    """An AdvisedSupply for settings.prefetch_method and io_threads."""
    return AdvisedSupply(
        sweep_from=2,
        n_ahead=AHEAD,
        drop_behind=False,
        prefetch_up_to=MOST_TOKENS,
        method=settings.prefetch_method,
        io_threads=settings.io_threads,
    )
