from libc.stdint cimport int64_t, uint16_t

from moeengine.graph.block cimport KvTiles, N_KV
from moeengine.kernels.region cimport Region


cdef class KvCache:
    cdef KvTiles[N_KV] tiles
    cdef Region region
    cdef readonly object sizes       # hparams.Sizes
    cdef readonly int64_t n_valid    # positions whose keys and values are those of the timeline
    cdef int64_t first               # positions before it were never put into the windows' tiles
    cdef int64_t last_tile           # of the windows: the highest that was written, -1: none

    cpdef int64_t n_ready(self, int64_t n_past)
    cdef int begin(self, int64_t n_past, int64_t n_tokens) except -1
    cdef void end(self, int64_t n_past) noexcept
    cdef _tiles(self, int i)
    cdef int64_t needed(self, int64_t n_past) noexcept
