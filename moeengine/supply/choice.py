"""Which mode serves a model on this machine, and how large its cache is: decided once, at load, in words."""

from dataclasses import dataclass, replace

from moeengine.errors import ConfigError
from moeengine.supply import make_supply
from moeengine.supply.budget import Room, memory_room
from moeengine.supply.expert_table import bytes_of_token, sizes_of
from moeengine.supply.readers import SMALLEST_ALIGNMENT, direct_alignment

FITS_BELOW = 0.9  # share of the room that a model may fill and still be left to the page cache
ANON_SHARE = 0.5  # of the room that the other weights may take in memory of our own
RESERVE_BYTES = 32e6  # for what nobody counts: code, page tables, heap
RESERVE_SHARE = 0.02  # of the limit
BUDGET = "memory_budget"
N_RING = 16  # experts; a small ring stays in the last-level cache, a larger one reads no faster


@dataclass(frozen=True)
class Demand:
    """Bytes that a run needs, by purpose.

    experts, dense : int     of the file
    context : int            KV cache and scratch of one session
    """

    experts: int
    dense: int
    context: int

    @property
    def whole(self):
        return self.experts + self.dense + self.context


@dataclass(frozen=True)
class Choice:
    """A mode and its sizes; `why` is one line for a person."""

    mode: str
    cache_mb: float
    why: str


def choose(model_at, settings, demand, room=None):
    """Decide mode and cache size where the settings leave it open.

    Parameters
    ----------
    model_at : ModelAt
    settings : EngineConfig
    demand : Demand
    room : Room        what may be taken; None: asked of the system

    Returns
    -------
    Choice

    Raises
    ------
    ConfigError    the cache that was asked for, or any that is useful, does not fit
    """
    room = memory_room() if room is None else room
    if settings.memory_budget is not None and settings.memory_budget < room.n_bytes:
        room = Room(settings.memory_budget, settings.memory_budget, BUDGET)
    sizes = sizes_of(model_at, SMALLEST_ALIGNMENT)
    slot = max((size for _, _, size in sizes), default=0)
    taken = demand.dense if settings.dense_weights == "anon" and room.why != BUDGET else 0  # already in use
    rest = demand.dense - taken + demand.context + N_RING * slot + RESERVE_BYTES + RESERVE_SHARE * room.limit
    most = min(room.n_bytes - rest, sum(tier.n_expert * size for _, tier, size in sizes))
    least = bytes_of_token(sizes, model_at.n_expert_used)
    numbers = (
        f"file {(demand.experts + demand.dense) / 1e9:.2f} GB, room {room.n_bytes / 1e9:.2f} GB ({room.why})"
    )
    mode = settings.moe_mode
    if mode == "auto":
        if not model_at.layers:
            return Choice("mmap", 0, "mmap: the model has no experts")
        if demand.whole <= FITS_BELOW * room.n_bytes:
            return Choice("mmap", 0, f"mmap: the model fits; {numbers}")
        if not all(direct_alignment(m.path) for m in model_at.maps):
            return Choice("mmap", 0, f"mmap: the file system has no direct reads; {numbers}")
        mode = "stream"
    bounded = settings.memory_budget is not None
    least_room = rest if bounded else rest - (demand.dense - taken)  # a control group may evict mapped weights
    if mode == "stream" and room.n_bytes < least_room:
        raise ConfigError(
            f"memory: found {room.n_bytes / 1e6:.0f} MB ({room.why}), expected at least {least_room / 1e6 + 1:.0f} MB: "
            f"weights other than experts {demand.dense / 1e6:.0f}, KV cache and scratch {demand.context / 1e6:.0f}, "
            f"ring and reserve {(rest - demand.dense - demand.context) / 1e6:.0f}; a smaller n_ctx or n_ubatch needs less"
        )
    if mode != "stream" and bounded and demand.whole > room.n_bytes:
        raise ConfigError(
            f"memory_budget: found {room.n_bytes / 1e6:.0f} MB, expected at least {demand.whole / 1e6:.0f} MB for {mode}, "
            "which leaves the page cache to the system; stream needs less"
        )
    if mode != "stream":
        return Choice(mode, 0, f"{mode}: as asked; {numbers}")
    if settings.cache_mb == "auto":
        cache = most if most >= least else 0
    else:
        cache = settings.cache_mb * 1e6
        if cache > most and cache > 0 and not settings.force_cache and room.n_bytes < demand.whole:
            raise ConfigError(
                f"cache_mb: found {settings.cache_mb:.0f}, expected at most {max(0, most) / 1e6:.0f}: {numbers}, "
                f"of which other weights, context and reserve take {rest / 1e6:.0f} MB"
            )
    share = cache / max(1, sum(tier.n_expert * size for _, tier, size in sizes))
    return Choice(mode, cache / 1e6,
                  f"stream: cache {cache / 1e6:.0f} MB for {100 * share:.0f} % of the experts; {numbers}")  # fmt: skip


def dense_policy(model_file, dense_bytes, settings, room=None):
    """What "auto" means for the weights that are no experts: "anon" or "mmap". Asked before the model is built."""
    if settings.dense_weights != "auto":
        return settings.dense_weights
    room = memory_room() if room is None else room
    n_bytes = min(room.n_bytes, settings.memory_budget or room.n_bytes)
    has_experts = dense_bytes < model_file.tensor_bytes
    streams = settings.moe_mode == "stream" or (
        settings.moe_mode == "auto" and model_file.tensor_bytes > FITS_BELOW * n_bytes
    )
    return "anon" if has_experts and streams and ANON_SHARE * n_bytes > dense_bytes else "mmap"


def supply_for(model_at, settings, demand):
    """The supply that `choose` decides on, not bound yet, and the Choice."""
    choice = choose(model_at, settings, demand)
    return make_supply(choice.mode, replace(settings, cache_mb=choice.cache_mb)), choice
