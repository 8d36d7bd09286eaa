"""The KV cache of a timeline: F16 keys and values in tiles of MOE_KV_TILE positions.

A tile is [layer][k|v][kv head], keys transposed and values a row a position (moe_table.h, moe_attn). So what a timeline has
used is the beginning of the cache, however many positions it has room for: memory comes in huge pages, and one would otherwise
be touched a layer and head.

Layers with a sliding window have tiles of their own. There are as many as a chunk and the windows before it need, and
REWIND_TOKENS at least; a tile takes the place of the oldest. A timeline that is cut back further than they reach is
computed again from its beginning, which `n_ready` says.
"""
from libc.stdint cimport int64_t, uint16_t

import numpy as np

from moeengine.graph.block cimport KV_WHOLE, KV_WINDOW
from moeengine.kernels.region cimport Region
from moeengine.kernels.table cimport MOE_KV_TILE

from moeengine.errors import ConfigError

cdef enum:
    REWIND_TOKENS = 2048    # of a timeline may be taken back, and more where chunks are longer: an answer with its thoughts, which
                            # chats leave out of the next prompt


cdef int64_t tiles_for(int64_t n_positions):
    return (n_positions + MOE_KV_TILE - 1) // MOE_KV_TILE


cdef int64_t window_tiles(sizes, int64_t n_ctx, n_ubatch):
    """Tiles of the layers with a window; n_ubatch None: for all positions."""
    if n_ubatch is None:
        return tiles_for(n_ctx)
    return min(tiles_for(n_ctx), tiles_for(sizes.window + max(<int64_t>n_ubatch, REWIND_TOKENS)) + 1)


def kv_bytes(sizes, n_ctx, n_ubatch=None):
    """Bytes of the keys and values of n_ctx positions; of the last ones in layers with a window, where chunks are at most
    n_ubatch tokens (None: of all)."""
    return 2 * MOE_KV_TILE * (sizes.kv_elements * tiles_for(n_ctx)
                              + sizes.window_elements * window_tiles(sizes, n_ctx, n_ubatch))


cdef class KvCache:
    """Keys and values of one timeline.

    sizes : Sizes
    n_ctx : int               positions
    n_ubatch : int or None    tokens a chunk has at most; None: windows may be cut back to anywhere
    """

    def __init__(self, sizes, int64_t n_ctx, n_ubatch):
        cdef KvTiles *whole = &self.tiles[KV_WHOLE]
        cdef KvTiles *window = &self.tiles[KV_WINDOW]
        self.sizes, self.n_valid, self.first, self.last_tile = sizes, 0, 0, -1
        self.region = Region(max(64, kv_bytes(sizes, n_ctx, n_ubatch)), "the context")
        whole.at, whole.stride, whole.n = <uint16_t *>self.region.base, sizes.kv_elements * MOE_KV_TILE, tiles_for(n_ctx)
        window.stride, window.n = sizes.window_elements * MOE_KV_TILE, window_tiles(sizes, n_ctx, n_ubatch)
        window.at = whole.at + whole.n * whole.stride

    cdef int64_t needed(self, int64_t n_past) noexcept:
        """The first position that the windows of what follows n_past tokens reach."""
        return max(<int64_t>0, n_past + 1 - <int64_t>self.sizes.window)

    cpdef int64_t n_ready(self, int64_t n_past):
        """The largest number of tokens, at most n_past, after which a chunk can follow."""
        cdef int64_t first = max(self.first, (self.last_tile - self.tiles[KV_WINDOW].n + 1) * MOE_KV_TILE)
        if self.tiles[KV_WINDOW].stride == 0:
            return n_past
        n_past = min(n_past, self.n_valid)
        return n_past if self.needed(n_past) >= first else 0

    cdef int begin(self, int64_t n_past, int64_t n_tokens) except -1:
        """Before a chunk of n_tokens after n_past. ConfigError: it cannot follow."""
        if self.n_ready(n_past) != n_past:
            raise ConfigError(f"n_past: found {n_past}, expected {self.n_ready(n_past)}: keys in the window before it are gone")
        if n_past == 0:
            self.first, self.last_tile = 0, -1
        self.last_tile = max(self.last_tile, (n_past + n_tokens - 1) // MOE_KV_TILE)
        self.n_valid = n_past        # until the chunk is done
        return 0

    cdef void end(self, int64_t n_past) noexcept:
        """The chunk was computed; keys and values are of n_past tokens."""
        self.n_valid = n_past

    def state(self, int64_t n_past):
        """Copies of what is kept of the first n_past tokens, one a layer and head of keys or values: list of uint16 (n, dim).
        Layers with a window have the last positions only."""
        state = []
        for head, n, first in self.heads(n_past):
            places = np.arange(first // MOE_KV_TILE, tiles_for(n_past)) % n
            rows = head[places].reshape(places.size * MOE_KV_TILE, head.shape[2])
            state.append(rows[first % MOE_KV_TILE:][:n_past - first])
        return state

    def n_state(self, int64_t n_past):
        """uint16 values of `state`."""
        return n_past * self.sizes.kv_elements + (n_past - self.needed(n_past)) * self.sizes.window_elements if n_past else 0

    def set_state(self, values, int64_t n_past):
        """Put back what `state` gave, one after another: uint16 (n_state(n_past),)."""
        at = 0
        for head, n, pos in self.heads(n_past):
            dim = head.shape[2]
            while pos < n_past:
                end = min(n_past, (pos // MOE_KV_TILE + 1) * MOE_KV_TILE)
                rows = head[pos // MOE_KV_TILE % n, pos % MOE_KV_TILE:][:end - pos]
                rows[:] = values[at:at + rows.size].reshape(rows.shape)
                pos, at = end, at + rows.size
        self.n_valid, self.first, self.last_tile = n_past, self.needed(n_past), tiles_for(n_past) - 1

    def heads(self, int64_t n_past):
        """(head, n, first) for every layer's heads of keys, then of values: a writable view (n, MOE_KV_TILE, head_dim), and the
        first position that `state` has of it."""
        parts = [self._tiles(i) for i in range(N_KV)]
        at = [0] * N_KV
        for layer in self.sizes.kv_layers:
            part = KV_WINDOW if layer.window else KV_WHOLE
            first = self.needed(n_past) if layer.window else 0
            for i in range(2 * layer.n_head_kv):
                is_key = i < layer.n_head_kv
                dim = layer.head_dim_k if is_key else layer.head_dim_v
                if dim == 0:      # values are in the keys
                    continue
                head = parts[part][:, at[part]:at[part] + dim * MOE_KV_TILE]
                at[part] += dim * MOE_KV_TILE
                n = head.shape[0]
                yield (head.reshape(n, dim, MOE_KV_TILE).swapaxes(1, 2) if is_key else head.reshape(n, MOE_KV_TILE, dim)), n, first

    cdef _tiles(self, int i):
        """One part of the cache: a writable view, uint16 (tiles, stride)."""
        cdef KvTiles *t = &self.tiles[i]
        cdef uint16_t[::1] view
        if t.stride == 0:
            return np.empty((t.n, 0), np.uint16)
        view = <uint16_t[:t.n * t.stride]>t.at
        return np.asarray(view).reshape(t.n, t.stride)
