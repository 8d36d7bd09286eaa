"""The indexer beside attention: small heads score all keys, and a token attends to the best.

score = sum over heads of weight * max(0, query . key). Keys of the indexer are narrower than those of attention, and
compressed where those are; queries and keys may be turned by a Walsh-Hadamard matrix, which changes no product but how
keys round to F16.
"""
from libc.math cimport INFINITY
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t
from libc.string cimport memcpy, memset

from moeengine.graph.block cimport Pass
from moeengine.graph.compressor cimport copy_key, hadamard_block, hadamard_rows, n_keys
from moeengine.kernels.table cimport moe_mul

cdef enum:
    F32 = 0          # ggml type id
    DIGIT_BITS = 8
    DIGITS = 256


cdef size_t score_scratch(const Indexer *x) noexcept nogil:
    return <size_t>(INDEX_KEYS * (x.keys.dim + x.n_head) * 4 + (x.keys.dim * 2 + 63) // 64 * 64)


cdef void finish_queries(const Indexer *x, Pass *p, int64_t t, const float *cs) noexcept nogil:
    cdef int64_t h, D = x.keys.dim
    cdef float *q
    cdef uint8_t *rows = <uint8_t *>(p.wide + x.rows_at * p.n_tokens) + <size_t>(t * x.n_head) * x.row_bytes
    for h in range(x.n_head):
        q = p.wide + x.q_at * p.n_tokens + (t * x.n_head + h) * D
        p.isa.rope(<size_t>x.keys.n_rot, cs, x.neox, q + x.rot_at)
        if x.keys.hadamard:
            hadamard_rows(D, hadamard_block(D), q)
        p.isa.x[p.isa.types[F32].x_format].quantize_row(<size_t>D, q, rows + <size_t>h * x.row_bytes)


cdef void score_keys(const Indexer *x, Pass *p, int64_t t0, int64_t n, int64_t k0, float *scores, int64_t stride,
                     uint8_t *scratch) noexcept nogil:
    cdef int64_t D = x.keys.dim, H = x.n_head, b, t, j, h, seen = n_keys(&x.keys, p.n_past + t0 + n)
    cdef int64_t n_here = min(<int64_t>INDEX_KEYS, seen - k0)
    cdef float *keys = <float *>scratch
    cdef float *products = keys + INDEX_KEYS * D
    cdef uint16_t *halves = <uint16_t *>(products + INDEX_KEYS * H)
    cdef const float *weights
    cdef float *out
    cdef float product
    cdef moe_mul m
    for j in range(n_here):
        copy_key(&x.keys, p, k0 + j, halves)
        p.isa.f16_to_f32(<size_t>D, halves, keys + j * D)
    m.n_in = <size_t>D
    m.n_rows = <size_t>n_here
    m.w = keys
    m.w_stride = <size_t>D * sizeof(float)
    m.n_x = <size_t>H
    m.x_stride = x.row_bytes
    m.out = products
    m.out_stride = INDEX_KEYS
    m.next = NULL
    for b in range(n):
        t = t0 + b
        if n_keys(&x.keys, p.n_past + t + 1) <= max(k0, x.top_k):
            continue                 # it sees none of these, or all there are
        m.x = <uint8_t *>(p.wide + x.rows_at * p.n_tokens) + <size_t>(t * H) * x.row_bytes
        p.isa.types[F32].mul_mat(&m)
        weights = p.wide + x.weights_at * p.n_tokens + t * H
        out = scores + b * stride + k0
        for j in range(n_here):
            out[j] = 0
        for h in range(H):
            for j in range(n_here):
                product = products[h * INDEX_KEYS + j]
                out[j] = out[j] + (product if product > 0 else <float>0) * weights[h]
        for j in range(n_here):
            if out[j] != out[j]:
                out[j] = -INFINITY


cdef inline uint32_t rank_of(float score) noexcept nogil:
    """Numbers in the order of the scores, whatever their bits."""
    cdef uint32_t bits, sign = <uint32_t>1 << 31
    score = score + 0                # -0 is 0
    memcpy(&bits, &score, sizeof(float))
    return ~bits if bits & sign else bits | sign


cdef void choose_keys(const float *scores, int64_t n, int64_t k, int32_t *ids) noexcept nogil:
    """Digit by digit from the highest, the rank that is reached by just k or more."""
    cdef int64_t count[DIGITS]
    cdef int64_t i, at = 0, above = 0, equal
    cdef uint32_t rank, least = 0, known = 0
    cdef int shift = 32, digit
    while shift > 0:
        shift -= DIGIT_BITS
        memset(count, 0, sizeof(count))
        for i in range(n):
            rank = rank_of(scores[i])
            if (rank & known) == least:
                count[rank >> shift & (DIGITS - 1)] += 1
        digit = DIGITS - 1
        while digit > 0 and above + count[digit] < k:
            above += count[digit]
            digit -= 1
        least |= <uint32_t>digit << shift
        known |= <uint32_t>(DIGITS - 1) << shift
    equal = k - above                # of rank `least`, the first so many
    for i in range(n):
        rank = rank_of(scores[i])
        if rank > least or (rank == least and equal > 0):
            if rank == least:
                equal -= 1
            if at < k:
                ids[at] = <int32_t>i
                at += 1
