"""ExpertSupply, what it knows of a model, and its counters. The modes are the files of supply/modes."""
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from dataclasses import dataclass

cdef extern from "<time.h>" nogil:
    struct timespec:
        long tv_sec
        long tv_nsec
    int clock_gettime(int clock, timespec *t)
    int CLOCK_MONOTONIC


cdef int64_t now_ns() noexcept nogil:
    cdef timespec t
    clock_gettime(CLOCK_MONOTONIC, &t)
    return <int64_t>t.tv_sec * 1000000000 + t.tv_nsec


@dataclass(frozen=True, slots=True)
class BankAt:
    """One expert tensor of a tier and where its mapping lies.

    tensor : loader.banks.BankTensor
    address : int      of expert 0's first byte in the mapping
    """

    tensor: object
    address: int


@dataclass(frozen=True, slots=True)
class TierAt:
    """Experts first .. first + n_expert - 1 of a layer; banks are gate, up, down."""

    first: int
    n_expert: int
    banks: tuple


@dataclass(frozen=True, slots=True)
class LayerAt:
    """All routed experts of layer `il`."""

    il: int
    tiers: tuple

    @property
    def n_expert(self):
        return sum(t.n_expert for t in self.tiers)


@dataclass(frozen=True, slots=True)
class ModelAt:
    """What a supply is told of a model.

    layers : tuple of LayerAt      the MoE layers, ascending
    maps : list of MappedFile      one a shard
    n_expert_used : int            experts a token
    dense : dict                   il -> list of (shard, offset, bytes): weights of layer il that are no routed experts and
                                   are read from the mapping; -1: those of no layer, but for the embedding
    """

    layers: tuple
    maps: list
    n_expert_used: int
    dense: dict

    @property
    def expert_bytes(self):
        """Bytes of all routed experts."""
        return sum(
            tier.n_expert * bank.tensor.expert_bytes
            for layer in self.layers for tier in layer.tiers for bank in tier.banks
        )


cdef class ExpertSupply:
    """See base.pxd for the contract."""

    def __cinit__(self):
        memset(self.phase, 0, sizeof(self.phase))
        self.nodes = NULL
        self.n_nodes = 0

    def __dealloc__(self):
        free(self.nodes)

    def bind(self, model_at):
        """Take in what the model is. SupplyError, ConfigError: it cannot be served with these settings."""
        self.layers = model_at.layers
        self.n_nodes = 3 * sum(len(layer.tiers) for layer in self.layers)
        self.nodes = <NodeCounts *>calloc(max(1, self.n_nodes), sizeof(NodeCounts))
        if self.nodes == NULL:
            raise MemoryError

    cdef int hooks(self, int64_t i_moe, int64_t i_tier, TierHooks *tier, ExpertHooks *banks) except -1:
        return 0

    cdef void count_nodes(self) noexcept:
        pass

    def take_nodes(self):
        """What was done for each expert tensor since the last call: list in the order of a pass, gate, up
        and down of a tier one after another, of dict of plain numbers."""
        self.count_nodes()
        rows = []
        for i in range(self.n_nodes):
            c = self.nodes[i]
            rows.append({"bytes_read": c.read_bytes, "bytes_advised": c.bytes_advised,
                         "bytes_dropped": c.bytes_dropped, "wait_s": c.wait_ns / 1e9})
        memset(self.nodes, 0, self.n_nodes * sizeof(NodeCounts))
        return rows

    def reads_mapping(self):
        """Whether expert bytes are read through the mapping of the file in any pass."""
        return True

    def mapping_released(self):
        """The mapping is gone, and nothing may look at an address in it any more."""

    def failure(self, il, ie):
        """Why the bytes of expert `ie` of layer `il` could not be had, in words; "" where nothing is known."""
        return ""

    def warm(self, experts):
        """Bring in experts before they are asked for, list of (il, ie) most wanted first; returns how many."""
        return 0

    def resident_bytes(self):
        """Anonymous bytes that the supply holds for expert weights."""
        return 0

    def phases(self):
        """Counters of prefill and decode: dict of dicts of plain numbers, units in the names."""
        return {name: self._phase(i) for i, name in enumerate(("prefill", "decode"))}

    def _phase(self, int i):
        c = self.phase[i]
        return {
            "n_layers": c.n_passes, "n_tokens": c.n_tokens, "n_hits": c.n_hits, "n_misses": c.n_misses,
            "n_evicted": c.n_evicted, "bytes_wanted": c.bytes_wanted, "bytes_read": c.read_bytes,
            "wait_s": c.wait_ns / 1e9, "upkeep_s": c.upkeep_ns / 1e9,
        }

    def stats(self):
        """What the supply is and has done beside `phases`: dict of plain values."""
        return {}

    def close(self):
        """Stop threads and give memory back; no pass may come afterwards. Again: nothing."""
