/* AVX-512: products of the 256-weight types with one activation row (decode).
 *
 * Weights stay where the file has them: 64 bytes of a row are unpacked and multiplied with activations in the same
 * order, so a register holds sums of four products of one row. Integers of a group are scaled, and the sums of 16 rows
 * are brought together at the end of a block: there lane = row, and the floats go as in moe_finish_block. */
#ifndef MOE_DOT_AVX512_H
#define MOE_DOT_AVX512_H
#include "panel_avx512.h"
typedef struct moe_sums { /* one block of 16 rows; lane = row */
    __m512i isum, msum;   /* msum, dmin: of types with a min */
    __m512 d, dmin;
} moe_sums;

/* v[i]: 16 numbers of row i -> in each 128-bit lane a part of the sum of rows 0..3 */
MOE_INLINE __m512i moe_add_four(const __m512i v[4]) {
    __m512i a = _mm512_add_epi32(_mm512_unpacklo_epi32(v[0], v[1]), _mm512_unpackhi_epi32(v[0], v[1]));
    __m512i b = _mm512_add_epi32(_mm512_unpacklo_epi32(v[2], v[3]), _mm512_unpackhi_epi32(v[2], v[3]));
    return _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
}

/* q[i]: of rows 4*i .. 4*i + 3, as moe_add_four gives them -> the sums of 16 rows */
MOE_INLINE __m512i moe_add_lanes(const __m512i q[4]) {
    __m512i a = _mm512_add_epi32(_mm512_shuffle_i32x4(q[0], q[1], 0x88), _mm512_shuffle_i32x4(q[0], q[1], 0xdd));
    __m512i b = _mm512_add_epi32(_mm512_shuffle_i32x4(q[2], q[3], 0x88), _mm512_shuffle_i32x4(q[2], q[3], 0xdd));
    return _mm512_add_epi32(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xdd));
}

/* ---- pieces of rows ---- */

/* matrix of vgf2p8affineqb: bit i of a result byte is the parity of (argument & mask i) */
#define MOE_BIT_ROWS(m0, m1, m2, m3, m4, m5, m6, m7)                                                              \
    ((uint64_t)(m0) << 56 | (uint64_t)(m1) << 48 | (uint64_t)(m2) << 40 | (uint64_t)(m3) << 32 | (uint64_t)(m4) << 24 | \
     (uint64_t)(m5) << 16 | (uint64_t)(m6) << 8 | (uint64_t)(m7))

/* 64 bytes of a row, loaded once: compilers would make it a memory operand of every use, and most cross a line */
MOE_INLINE __m512i moe_row_64(const moe_rows *r, const int i, size_t off) {
    __m512i v = _mm512_loadu_si512(moe_row(r, i) + off);
    __asm__("" : "+v"(v));
    return v;
}

/* 32 bytes of a row in both halves */
MOE_INLINE __m512i moe_row_32_twice(const moe_rows *r, const int i, size_t off) {
    return _mm512_broadcast_i64x4(_mm256_loadu_si256((const void *)(moe_row(r, i) + off)));
}

/* 4 bytes a row, to be loaded row by row: compilers would otherwise take them out of the registers they come from */
typedef struct moe_row_words {
    uint32_t row[16];
} __attribute__((aligned(64))) moe_row_words;

MOE_INLINE void moe_store_words(moe_row_words *w, __m512i v) {
    _mm512_store_si512(w, v);
    __asm__("" : "+m"(*w));
}

/* the high nibbles of all bytes */
MOE_INLINE __m512i moe_high_nibbles(__m512i v) {
    return _mm512_gf2p8affine_epi64_epi8(v, _mm512_set1_epi64((long long)MOE_BIT_ROWS(16, 32, 64, 128, 0, 0, 0, 0)), 0);
}

/* Sums of four products of two vectors, as 16 bits: in each 128-bit lane four of a, then four of b. start: what they
 * start from. */
MOE_INLINE __m512i moe_dot_two(__m512i a, __m512i b, const __m512i x[2], const __m512i start[2]) {
    return _mm512_packs_epi32(_mm512_dpbusd_epi32(start[0], a, x[0]), _mm512_dpbusd_epi32(start[1], b, x[1]));
}

/* 64 activations each, and what sums of four products with them start from where weights are kept as q + offset */
MOE_INLINE void moe_load_activations(const block_x_q8_K *b, const int offset, __m512i x[4], __m512i start[4]) {
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++) {
        x[k] = _mm512_load_si512(b->q + 64 * k);
        start[k] = _mm512_setzero_si512();
        if (offset) start[k] = _mm512_sub_epi32(start[k], _mm512_dpbusd_epi32(start[k], _mm512_set1_epi8((char)offset), x[k]));
    }
}

/* ---- 16 rows ---- */

typedef moe_sums moe_block_dot(const moe_rows *block, const block_x_q8_K *x);

/* 16 rows x one activation row, w_stride bytes apart; fewer where n_rows < 16. next: moe_fetch_for_dot */
MOE_INLINE __m512 moe_dot_panel(const moe_mul *m, const uint8_t *w, size_t w_stride, size_t n_rows, const uint8_t *next,
                                const moe_kind kind, const size_t bytes, moe_block_dot *dot) {
    uint8_t copy[16 * 256];
    const block_x_q8_K *x = m->x;
    __m512 acc = _mm512_setzero_ps();
    for (size_t b = 0; b < m->n_in / 256; b++) {
        moe_rows rows = n_rows < 16 ? moe_short_panel(w + b * bytes, w_stride, n_rows, bytes, copy)
                                    : moe_rows_at(w + b * bytes, w_stride, MOE_STREAM_AHEAD);
        moe_fetch_for_dot(&rows, bytes, next, b);
        moe_sums s = dot(&rows, x + b);
        acc = moe_finish_block(kind, s.isum, s.msum, s.d, s.dmin, x + b, acc);
    }
    return acc;
}

/* ---- the order of rows ---- */

typedef __m512 moe_panel_dot(const moe_mul *m, const uint8_t *w, size_t w_stride, size_t n_rows, const uint8_t *next);

/* rows r .. n_rows - 1, 16 neighbours at a time; is_fetching: the next panel meanwhile */
MOE_INLINE void moe_dot_from(const moe_mul *m, size_t r, moe_panel_dot *dot, const int is_fetching) {
    for (; r < m->n_rows; r += 16) {
        size_t n = m->n_rows - r < 16 ? m->n_rows - r : 16;
        const uint8_t *w = (const uint8_t *)m->w + r * m->w_stride;
        const uint8_t *next = moe_rows_to_come(m, r);
        if (!next) next = w;
        _mm512_mask_storeu_ps(m->out + r, v16_mask(n), dot(m, w, m->w_stride, n, is_fetching ? next : NULL));
    }
}

/* In the order of the memory, every line fetched once a panel ahead. Best for types that take longer to unpack than to
 * read. */
MOE_INLINE void moe_dot_neighbours(const moe_mul *m, moe_panel_dot *dot) {
    moe_fetch_bytes(m->w, (m->n_rows < 16 ? m->n_rows : 16) * m->w_stride);
    moe_dot_from(m, 0, dot, 1);
}

/* Rows that a lane goes through one after another, so that 16 * that many rows are read as 16 streams which the prefetchers of the
 * CPU recognize. Streams a multiple of 1024 bytes apart would fall on the same lines of the first-level cache, which
 * has 8 to 12 ways; one row less helps where the row itself is no such multiple. */
MOE_INLINE size_t moe_stream_rows(const moe_mul *m) {
    size_t n = m->n_rows / 16;
    for (size_t less = 0; less < 3 && less < n; less++)
        if (((n - less) * m->w_stride + 32) % 1024 >= 64) return n - less;
    return n;
}

/* The beginnings of 16 streams of `bytes` each, which moe_fetch does not reach */
MOE_INLINE void moe_fetch_streams(const uint8_t *w, size_t bytes) {
    size_t begin = bytes < MOE_STREAM_AHEAD ? bytes : MOE_STREAM_AHEAD;
    for (size_t off = 0; off < begin; off += 64)
        for (size_t i = 0; i < 16; i++) _mm_prefetch((const char *)w + i * bytes + off, _MM_HINT_T1);
}

/* As 16 streams, then what is left as neighbours. Best for types that are read as fast as the memory allows. */
MOE_INLINE void moe_dot_streams(const moe_mul *m, moe_panel_dot *dot) {
    const uint8_t *w = m->w;
    size_t n = moe_stream_rows(m);
    moe_fetch_streams(w, n * m->w_stride);
    for (size_t r = 0; r < n; r++) {
        float sum[16];
        if (r + 1 == n && m->next) moe_fetch_streams(m->next, n * m->w_stride);
        _mm512_storeu_ps(sum, dot(m, w + r * m->w_stride, n * m->w_stride, 16, NULL));
        for (size_t i = 0; i < 16; i++) m->out[i * n + r] = sum[i];
    }
    moe_dot_from(m, 16 * n, dot, 0);
}

#endif
