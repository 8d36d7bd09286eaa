"""stream: experts past the page cache, into a cache that is ours; prompts sweep around it."""

from moeengine.supply.direct import DirectSupply

SETTINGS = (
    "cache_mb", "cache_policy", "drop_cold_experts", "force_cache",
    "io_threads", "prefetch_layers", "sweep_min_tokens", "warm_experts",
)  # fmt: skip


def make(settings):
    """A DirectSupply with a cache of settings.cache_mb (resolved to a number before)."""
    return DirectSupply(
        io_threads=settings.io_threads,
        cache_bytes=int(settings.cache_mb * 1e6),
        policy=settings.cache_policy,
        sweep_from=settings.sweep_min_tokens,
        forced=settings.force_cache,
    )
