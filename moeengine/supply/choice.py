"""Which mode serves a model on this machine, and how large its cache is: decided once, at load, in words."""

from dataclasses import dataclass, replace
from math import ceil

from moeengine.config import N_UBATCH_DEFAULT
from moeengine.errors import ConfigError
from moeengine.stats import shown_bytes
from moeengine.supply import make_supply
from moeengine.supply.budget import Room, memory_room
from moeengine.supply.dense import has_room
from moeengine.supply.expert_table import bytes_of_token, sizes_of
from moeengine.supply.probe import faster_sweep
from moeengine.supply.readers import SMALLEST_ALIGNMENT, direct_alignment

WARM_SHARE = 0.9  # of the experts in the page cache: nothing is gained by reading ahead
COLD_BYTES = 256e6  # experts; fewer are in the page cache before anybody notices
FITS_BELOW = 0.9  # share of the room that a model may fill and still be left to the page cache
ANON_SHARE = 0.5  # of the room beside the KV cache that the other weights may take in memory of our own
RESERVE_BYTES = 32e6  # for what nobody counts: code, page tables, heap
BUDGET_RESERVE_BYTES = 10e6  # the same where what the process had before is counted
RESERVE_SHARE = 0.02  # of the limit
PROGRAM_BYTES = 64e6  # interpreter and libraries; what else a program holds is its own affair
SCRATCH_SHARE = 0.25  # of what streaming leaves for cache and scratch that a chunk's scratch may take
LEAST_SCRATCH = 0.05  # of the room, taken from weights that the system may drop: small chunks read all experts often
LEAST_UBATCH = 32  # tokens; smaller chunks would not sweep
BUDGET = "memory_budget"
N_RING = 16  # experts; a small ring stays in the last-level cache, a larger one reads no faster


@dataclass(frozen=True)
class Demand:
    """Bytes that a run needs, by purpose.

    experts, dense : int     of the file
    kv : int                 KV cache of one session
    scratch : int            of one session
    """

    experts: int
    dense: int
    kv: int
    scratch: int = 0

    @property
    def context(self):
        return self.kv + self.scratch

    @property
    def whole(self):
        return self.experts + self.dense + self.context


@dataclass(frozen=True)
class Choice:
    """A mode and its sizes; `why` is one line for a person."""

    mode: str
    cache_mb: float
    why: str
    n_ubatch: int = 0  # tokens a chunk; 0: not looked at
    sweep_method: str = "direct"
    context_bytes: int = 0  # that one session was counted with
    reads_ahead: bool = False  # the files into the page cache, while the model works already


def room_for(settings, dense_bytes=0, before=0):
    """The tightest of what the system allows and settings.memory_budget.

    dense_bytes : int    of weights that this model already holds in memory of its own
    before : int         bytes that the process held before the model was loaded; they count against a budget, as
                         far as they may be the interpreter's and our own
    """
    room = memory_room()
    if settings.memory_budget is None:
        return room
    left = int(settings.memory_budget - min(before, PROGRAM_BYTES) - dense_bytes)
    return Room(left, settings.memory_budget, BUDGET) if left < room.n_bytes else room


def fitting_ubatch(settings, n_ctx, demand_of, room, fixed, taken=0):
    """Tokens a chunk of a prompt: as many as memory allows, where the settings do not say.

    Parameters
    ----------
    demand_of : callable     demand_of(n_ubatch) -> Demand
    room : Room
    fixed : int              bytes of ring and reserve
    taken : int              bytes of other weights that are in memory already

    Returns
    -------
    int      at most n_ctx; the most that leaves the cache its share, or LEAST_UBATCH
    """
    n = min(settings.n_ubatch or N_UBATCH_DEFAULT, n_ctx)
    if settings.n_ubatch is not None:
        return n
    while n > LEAST_UBATCH:
        demand = demand_of(n)
        must_hold = demand.dense - taken if room.why == BUDGET else 0
        hard = room.n_bytes - fixed - demand.kv - must_hold
        soft = room.n_bytes - fixed - demand.kv - (demand.dense - taken)
        most = max(SCRATCH_SHARE * soft, min(hard, LEAST_SCRATCH * room.n_bytes))
        if demand.whole - taken <= FITS_BELOW * room.n_bytes or demand.scratch <= most:
            break
        n = max(LEAST_UBATCH, n // 2)
    return n


def choose(model_at, settings, demand, room=None, page_cache_share=1.0):
    """Decide mode and cache size where the settings leave it open.

    Parameters
    ----------
    model_at : ModelAt
    settings : EngineConfig     dense_weights "anon": the other weights are in memory already
    demand : Demand
    room : Room        what may still be taken; None: asked of the system
    page_cache_share : float    of the experts, that is in the page cache

    Returns
    -------
    Choice

    Raises
    ------
    ConfigError    the context, the cache that was asked for, or any that is useful, does not fit
    """
    taken = demand.dense if settings.dense_weights == "anon" else 0
    room = room_for(settings, taken) if room is None else room
    bounded = room.why == BUDGET
    sizes = sizes_of(model_at, SMALLEST_ALIGNMENT)
    fixed = fixed_bytes(sizes, room) + demand.dense - taken
    rest = fixed + demand.context
    most = min(room.n_bytes - rest, sum(tier.n_expert * size for _, tier, size in sizes))
    least = bytes_of_token(sizes, model_at.n_expert_used)
    numbers = (
        f"file {shown_bytes(sum(m.size for m in model_at.maps))}, room {shown_bytes(room.n_bytes + taken)} ({room.why})"
    )
    mode, words = settings.moe_mode, "" if settings.moe_mode == "stream" else "as asked"
    fits = demand.whole - taken <= FITS_BELOW * room.n_bytes
    if mode == "auto":
        mode, words = _best_mode(model_at, fits, bounded)
    if mode != "stream" and bounded and demand.whole - taken > room.n_bytes:
        raise ConfigError(
            f"memory_budget: found {settings.memory_budget / 1e6:.0f} MB, expected at least "
            f"{ceil((settings.memory_budget + demand.whole - taken - room.n_bytes) / 1e6)} MB for {mode}, "
            "which leaves the page cache to the system; "
            + ("stream" if model_at.layers else "a smaller n_ctx or n_ubatch")
            + " needs less"
        )
    needed = demand.context if mode == "mmap" else rest if bounded else rest - (demand.dense - taken)
    _check_least(settings, demand, taken, room, needed)
    if mode != "stream":
        ahead = settings.moe_mode == "auto" and fits and _is_cold(demand.experts, page_cache_share)
        words += ", and is read into the page cache meanwhile" if ahead else ""
        return Choice(mode, 0, f"{mode}: {words}; {numbers}", reads_ahead=ahead)
    if settings.cache_mb == "auto":
        cache = most if most >= least else 0
    else:
        cache = settings.cache_mb * 1e6
        if cache > most and cache > 0 and not settings.force_cache and room.n_bytes < demand.whole - taken:
            raise ConfigError(
                f"cache_mb: found {settings.cache_mb:.0f}, expected at most {max(0, most) / 1e6:.0f}: {numbers}, "
                f"of which other weights, context and reserve take {(rest + taken) / 1e6:.0f} MB"
            )
    share = cache / max(1, sum(tier.n_expert * size for _, tier, size in sizes))
    return Choice("stream", cache / 1e6,
                  f"stream: {words}cache {cache / 1e6:.0f} MB for {100 * share:.0f} % of the experts; {numbers}")  # fmt: skip


def fixed_bytes(sizes, room):
    """Bytes of the ring and of what nobody counts."""
    reserve = BUDGET_RESERVE_BYTES if room.why == BUDGET else RESERVE_BYTES
    return N_RING * max((size for _, _, size in sizes), default=0) + reserve + RESERVE_SHARE * room.limit


def _is_cold(expert_bytes, page_cache_share):
    """Whether there is so much to read that a thread of its own pays."""
    return expert_bytes >= COLD_BYTES and page_cache_share < WARM_SHARE


def _best_mode(model_at, fits, bounded):
    """(mode, why) for "auto"."""
    if not model_at.layers:
        return "mmap", "the model has no experts"
    if fits:
        return "mmap", "the model fits"
    if not bounded and not all(direct_alignment(m.path) for m in model_at.maps):
        return "prefetch", "the model does not fit, and the file system has no direct reads"
    return "stream", ""


def _check_least(settings, demand, taken, room, least):
    """ConfigError where there is no room for `least` bytes, which no run can do without."""
    if room.n_bytes < least:
        found = settings.memory_budget if room.why == BUDGET else room.n_bytes + taken
        other = demand.dense if room.why == BUDGET or taken else 0
        raise ConfigError(
            f"memory: found {found / 1e6:.0f} MB ({room.why}), expected at least "
            f"{ceil((found + least - room.n_bytes) / 1e6)} MB: "
            f"weights other than experts {other / 1e6:.0f}, KV cache {demand.kv / 1e6:.0f}, scratch "
            f"{demand.scratch / 1e6:.0f}, the rest for ring and reserve; a smaller n_ctx or n_ubatch needs less"
        )


def dense_policy(model_file, dense_bytes, kv_bytes, settings, room):
    """What "auto" means for the weights that are no experts: "anon" or "mmap". Asked before the model is built."""
    if settings.dense_weights != "auto":
        return settings.dense_weights
    has_experts = dense_bytes < model_file.tensor_bytes
    streams = settings.moe_mode == "stream" or (
        settings.moe_mode == "auto" and model_file.tensor_bytes + kv_bytes > FITS_BELOW * room.n_bytes
    )
    fits = ANON_SHARE * (room.n_bytes - kv_bytes) > dense_bytes
    return "anon" if has_experts and streams and fits and has_room(model_file) else "mmap"


def supply_for(model_at, settings, demand_of, n_ctx, before=0, page_cache_share=1.0):
    """The supply that `choose` decides on, not bound yet, and the Choice with every size filled in.

    Parameters
    ----------
    demand_of : callable    demand_of(n_ubatch) -> Demand
    n_ctx : int
    before : int            bytes that the process held before the model was loaded
    page_cache_share : float

    Raises
    ------
    ConfigError    as `choose`
    """
    taken = demand_of(1).dense if settings.dense_weights == "anon" else 0
    room = room_for(settings, taken, before)
    fixed = fixed_bytes(sizes_of(model_at, SMALLEST_ALIGNMENT), room)
    n_ubatch = fitting_ubatch(settings, n_ctx, demand_of, room, fixed, taken)
    choice = choose(model_at, settings, demand_of(n_ubatch), room, page_cache_share)
    why, method = choice.why, settings.sweep_method
    if n_ubatch < min(settings.n_ubatch or N_UBATCH_DEFAULT, n_ctx):
        why += f"; chunks of {n_ubatch} tokens"
    if choice.mode == "sweep-prefill" and method == "auto":
        method, words = faster_sweep(model_at, page_cache_share)
        why += f"; sweep {method} ({words})"
    choice = replace(choice, why=why, n_ubatch=n_ubatch, sweep_method=method, context_bytes=demand_of(n_ubatch).context)
    settings = replace(settings, cache_mb=choice.cache_mb, sweep_method=method)
    return make_supply(choice.mode, settings), choice
