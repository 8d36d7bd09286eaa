/* AVX-512: the products of mul_lanes.h for 8 rows of weights at a time, two in a vector. Weights stay unsigned; what is too
 * much of a lane's sum is where it starts. */
#ifndef MOE_LANES_AVX512_H
#define MOE_LANES_AVX512_H
#include "mul_lanes.h"

enum { MOE_LANES_ROWS = 8, MOE_LANES_PAIRS = 4, MOE_LANES_DEPTH = 32 /* blocks of a piece */ };

typedef struct moe_lanes_pairs { /* [pair][block]: 32 weights of one row, then of the other; their scales in the same lanes */
    uint8_t w[MOE_LANES_PAIRS][MOE_LANES_DEPTH][64];
    float d[MOE_LANES_PAIRS][MOE_LANES_DEPTH][16];
    float m[MOE_LANES_DEPTH][MOE_LANES_ROWS];
} __attribute__((aligned(64))) moe_lanes_pairs;

typedef struct moe_lanes_type { /* constants of a type */
    size_t bytes, d, m, qh, qs; /* a block, and where its parts are */
    int offset, has_min;
} moe_lanes_type;

MOE_INLINE void moe_lanes_block(const moe_lanes_type type, const uint8_t *b, moe_lanes_pairs *p, size_t row, size_t i) {
    __m256i q = _mm256_or_si256(avx2_nibbles(b + type.qs), avx2_bits_to_16(moe_load_u32(b + type.qh)));
    _mm256_store_si256((__m256i *)(p->w[row / 2][i] + 32 * (row % 2)), q);
    _mm256_store_ps(p->d[row / 2][i] + 8 * (row % 2), _mm256_set1_ps(moe_load_half(b + type.d)));
    if (type.has_min) p->m[i][row] = moe_load_half(b + type.m);
}

/* blocks of a piece, b and on of the row, times one activation row */
MOE_INLINE void moe_lanes_add(const moe_lanes_type type, const moe_lanes_pairs *p, size_t n_blocks, const moe_x_q8_0 *x, size_t b,
                              __m512 acc[MOE_LANES_PAIRS], __m256 *mins) {
    const __m512i zero = _mm512_setzero_si512(), offset = _mm512_set1_epi8((char)type.offset);
    __m512 a[MOE_LANES_PAIRS];
    __m256 m = *mins;
    for (int k = 0; k < MOE_LANES_PAIRS; k++) a[k] = acc[k];
    for (size_t i = 0; i < n_blocks; i++) {
        const __m512i y = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)(x->q + 32 * (b + i))));
        const __m512i start = type.offset ? _mm512_sub_epi32(zero, _mm512_dpbusd_epi32(zero, offset, y)) : zero;
        const __m512 d = _mm512_set1_ps(x->d[b + i]);
#pragma GCC unroll 4
        for (int k = 0; k < MOE_LANES_PAIRS; k++) {
            const __m512i sums = _mm512_dpbusd_epi32(start, _mm512_load_si512(p->w[k][i]), y);
            a[k] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums), _mm512_mul_ps(_mm512_load_ps(p->d[k][i]), d), a[k]);
        }
        if (type.has_min) m = _mm256_fmadd_ps(_mm256_load_ps(p->m[i]), _mm256_set1_ps(x->s[b + i]), m);
    }
    for (int k = 0; k < MOE_LANES_PAIRS; k++) acc[k] = a[k];
    *mins = m;
}

MOE_INLINE void moe_lanes_rows(const moe_mul *m, const moe_lanes_type type) {
    const size_t n_blocks = m->n_in / 32;
    moe_lanes_pairs piece;
    for (size_t t0 = 0; t0 < m->n_x; t0 += MOE_LANES_X) {
        size_t nt = m->n_x - t0 < MOE_LANES_X ? m->n_x - t0 : MOE_LANES_X;
        moe_x_q8_0 x[MOE_LANES_X];
        for (size_t t = 0; t < nt; t++) x[t] = moe_x_q8_0_at(m->n_in, (const uint8_t *)m->x + (t0 + t) * m->x_stride);
        for (size_t r0 = 0; r0 < m->n_rows; r0 += MOE_LANES_ROWS) {
            const size_t n = m->n_rows - r0 < MOE_LANES_ROWS ? m->n_rows - r0 : MOE_LANES_ROWS;
            const uint8_t *w = (const uint8_t *)m->w + r0 * m->w_stride;
            __m512 acc[MOE_LANES_X][MOE_LANES_PAIRS];
            __m256 mins[MOE_LANES_X];
            for (size_t t = 0; t < nt; t++) {
                for (int k = 0; k < MOE_LANES_PAIRS; k++) acc[t][k] = _mm512_setzero_ps();
                mins[t] = _mm256_setzero_ps();
            }
            for (size_t b = 0; b < n_blocks; b += MOE_LANES_DEPTH) {
                const size_t depth = n_blocks - b < MOE_LANES_DEPTH ? n_blocks - b : MOE_LANES_DEPTH;
                for (size_t r = 0; r < MOE_LANES_ROWS; r++) { /* rows that are not there: the last one again */
                    const uint8_t *row = w + (r < n ? r : n - 1) * m->w_stride + b * type.bytes;
                    for (size_t i = 0; i < depth; i++) {
                        __builtin_prefetch(row + i * type.bytes + MOE_LANES_ROWS * m->w_stride);
                        moe_lanes_block(type, row + i * type.bytes, &piece, r, i);
                    }
                }
                for (size_t t = 0; t < nt; t++) moe_lanes_add(type, &piece, depth, &x[t], b, acc[t], &mins[t]);
            }
            for (size_t t = 0; t < nt; t++) {
                float out[MOE_LANES_ROWS], min[MOE_LANES_ROWS];
                for (int k = 0; k < MOE_LANES_PAIRS; k++) {
                    out[2 * k] = moe_lanes_sum(_mm512_castps512_ps256(acc[t][k]));
                    out[2 * k + 1] = moe_lanes_sum(_mm512_extractf32x8_ps(acc[t][k], 1));
                }
                _mm256_storeu_ps(min, mins[t]);
                for (size_t r = 0; r < n; r++)
                    m->out[(t0 + t) * m->out_stride + r0 + r] = type.has_min ? out[r] + min[r] : out[r];
            }
        }
    }
}

static void mul_mat_avx512_Q5_0(const moe_mul *m) {
    typedef block_Q5_0 block;
    moe_lanes_rows(m, (moe_lanes_type){sizeof(block), offsetof(block, d), 0, offsetof(block, qh), offsetof(block, qs), 16, 0});
}
static void mul_mat_avx512_Q5_1(const moe_mul *m) {
    typedef block_Q5_1 block;
    moe_lanes_rows(m, (moe_lanes_type){sizeof(block), offsetof(block, d), offsetof(block, m), offsetof(block, qh), offsetof(block, qs), 0, 1});
}

#endif
