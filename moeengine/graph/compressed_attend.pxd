from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t

from moeengine.graph.block cimport Pass
from moeengine.graph.compressed_state cimport CompressedAttention

cdef struct Room:
    # Pass.extra, for as many tokens at once as there are threads
    int64_t n_tiles             # of keys, a token
    int64_t n_scores            # floats a token
    uint16_t *tiles
    float *scores
    int32_t *ids
    uint8_t *thread             # scratch, thread_bytes a thread
    size_t thread_bytes

# Bytes of Pass.extra; with base not NULL also where its parts lie.
cdef size_t lay_out(const CompressedAttention *a, int64_t n_ctx, int64_t n_threads, uint8_t *base, Room *r) noexcept nogil
# p.attn (T, H, dim) of p.q, rotated back. Ends with a barrier.
cdef void attend_all(const CompressedAttention *a, Pass *p, Room *r, int ith, int nth) noexcept nogil
