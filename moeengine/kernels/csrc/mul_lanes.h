/* Products of Q5_0 and Q5_1. Their float sums have eight lanes, as stock has them for these types alone (moe_table.h), so a
 * block's integer sum is never whole: a row is unpacked piece by piece, and each piece goes through some activation rows. */
#ifndef MOE_MUL_LANES_H
#define MOE_MUL_LANES_H
#include "quants/all.h"

enum {
    MOE_LANES_BLOCKS = 64, /* of a piece */
    MOE_LANES_X = 32,      /* activation rows that go through a piece */
    MOE_LANES_TILE = 4     /* of them at a time */
};

typedef struct moe_lanes_piece {
    int8_t q[MOE_LANES_BLOCKS][32];
    float d[MOE_LANES_BLOCKS], m[MOE_LANES_BLOCKS];
} __attribute__((aligned(64))) moe_lanes_piece;

typedef void moe_lanes_unpack(const void *row, size_t i, moe_lanes_piece *p, size_t at);

#if MOE_SIMD_AVX2
typedef __m256 moe_lanes;
MOE_INLINE moe_lanes moe_lanes_zero(void) { return _mm256_setzero_ps(); }

/* 4-bit weights of a block: low nibbles, then high ones */
MOE_INLINE __m256i avx2_nibbles(const void *p) {
    __m128i v = _mm_loadu_si128((const __m128i *)p);
    __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(v), _mm_srli_epi16(v, 4), 1);
    return _mm256_and_si256(both, _mm256_set1_epi8(15));
}

/* bit i of v as byte i, 16 or 0 */
MOE_INLINE __m256i avx2_bits_to_16(uint32_t v) {
    const __m256i at = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2,
                                        2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201);
    __m256i set = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32((int32_t)v), at), bit);
    return _mm256_and_si256(_mm256_cmpeq_epi8(set, bit), _mm256_set1_epi8(16));
}

/* d and m of a piece's place, and its 32 weights less `off` */
MOE_INLINE void moe_lanes_put(moe_lanes_piece *p, size_t at, const void *qs, const void *qh, int off) {
    __m256i q = _mm256_or_si256(avx2_nibbles(qs), avx2_bits_to_16(moe_load_u32(qh)));
    _mm256_store_si256((__m256i *)p->q[at], _mm256_sub_epi8(q, _mm256_set1_epi8((char)off)));
}
MOE_INLINE void lanes_Q5_0(const void *row, size_t i, moe_lanes_piece *p, size_t at) {
    const block_Q5_0 *b = (const block_Q5_0 *)row + i;
    moe_lanes_put(p, at, b->qs, b->qh, 16);
    p->d[at] = moe_load_half(&b->d);
}
MOE_INLINE void lanes_Q5_1(const void *row, size_t i, moe_lanes_piece *p, size_t at) {
    const block_Q5_1 *b = (const block_Q5_1 *)row + i;
    moe_lanes_put(p, at, b->qs, b->qh, 0);
    p->d[at] = moe_load_half(&b->d), p->m[at] = moe_load_half(&b->m);
}

/* lane l: sum of w[k] * y[k], k = 4l .. 4l + 3; size: of w */
MOE_INLINE __m256i moe_lanes_sums(__m256i size, __m256i w, __m256i y) {
    y = _mm256_sign_epi8(y, w);
#if MOE_SIMD_AVX512
    return _mm256_dpbusd_epi32(_mm256_setzero_si256(), size, y);
#else
    return _mm256_madd_epi16(_mm256_maddubs_epi16(size, y), _mm256_set1_epi16(1));
#endif
}

/* blocks of a piece, b and on of the row, times n (constant) activation rows */
MOE_INLINE void moe_lanes_tile(const int n, int has_min, const moe_lanes_piece *p, size_t n_blocks, size_t b, const moe_x_q8_0 *x,
                               moe_lanes *acc, float *mins) {
    __m256 a[MOE_LANES_TILE];
    for (int t = 0; t < n; t++) a[t] = acc[t];
    for (size_t i = 0; i < n_blocks; i++) {
        __m256i w = _mm256_load_si256((const __m256i *)p->q[i]), size = _mm256_abs_epi8(w);
#pragma GCC unroll 4
        for (int t = 0; t < n; t++) {
            __m256i sums = moe_lanes_sums(size, w, _mm256_loadu_si256((const __m256i *)(x[t].q + 32 * (b + i))));
            a[t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums), _mm256_set1_ps(p->d[i] * x[t].d[b + i]), a[t]);
            if (has_min) mins[t] = f32_madd(p->m[i], x[t].s[b + i], mins[t]);
        }
    }
    for (int t = 0; t < n; t++) acc[t] = a[t];
}

/* lanes l and l + 4, then l + 2, then l + 1 */
MOE_INLINE float moe_lanes_sum(moe_lanes a) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
#else
typedef struct moe_lanes {
    float lane[8];
} moe_lanes;
MOE_INLINE moe_lanes moe_lanes_zero(void) { return (moe_lanes){{0}}; }

MOE_INLINE void moe_lanes_put(moe_lanes_piece *p, size_t at, const moe_group *u) {
    memcpy(p->q[at], u->q, sizeof u->q);
    p->d[at] = u->d, p->m[at] = u->m;
}
MOE_INLINE void lanes_Q5_0(const void *row, size_t i, moe_lanes_piece *p, size_t at) {
    moe_group u = {.m = 0};
    unpack_Q5_0(row, i, &u);
    moe_lanes_put(p, at, &u);
}
MOE_INLINE void lanes_Q5_1(const void *row, size_t i, moe_lanes_piece *p, size_t at) {
    moe_group u;
    unpack_Q5_1(row, i, &u);
    moe_lanes_put(p, at, &u);
}

MOE_INLINE void moe_lanes_tile(const int n, int has_min, const moe_lanes_piece *p, size_t n_blocks, size_t b, const moe_x_q8_0 *x,
                               moe_lanes *acc, float *mins) {
    for (int t = 0; t < n; t++)
        for (size_t i = 0; i < n_blocks; i++) {
            const int8_t *w = p->q[i], *y = x[t].q + 32 * (b + i);
            const float d = p->d[i] * x[t].d[b + i];
            for (size_t l = 0; l < 8; l++) {
                int32_t sum = 0;
                for (size_t k = 4 * l; k < 4 * l + 4; k++) sum += w[k] * y[k];
                acc[t].lane[l] = f32_madd((float)sum, d, acc[t].lane[l]);
            }
            if (has_min) mins[t] = f32_madd(p->m[i], x[t].s[b + i], mins[t]);
        }
}

MOE_INLINE float moe_lanes_sum(moe_lanes a) {
    for (size_t n = 4; n; n /= 2)
        for (size_t l = 0; l < n; l++) a.lane[l] += a.lane[l + n];
    return a.lane[0];
}
#endif

MOE_INLINE void moe_mul_lanes(const moe_mul *m, size_t bytes, int has_min, moe_lanes_unpack *unpack) {
    const size_t n_blocks = m->n_in / 32;
    moe_lanes_piece piece;
    for (size_t t0 = 0; t0 < m->n_x; t0 += MOE_LANES_X) {
        size_t nt = m->n_x - t0 < MOE_LANES_X ? m->n_x - t0 : MOE_LANES_X;
        moe_x_q8_0 x[MOE_LANES_X];
        for (size_t t = 0; t < nt; t++) x[t] = moe_x_q8_0_at(m->n_in, (const uint8_t *)m->x + (t0 + t) * m->x_stride);
        for (size_t r = 0; r < m->n_rows; r++) {
            const uint8_t *w = (const uint8_t *)m->w + r * m->w_stride;
            moe_lanes acc[MOE_LANES_X];
            float mins[MOE_LANES_X];
            for (size_t t = 0; t < nt; t++) acc[t] = moe_lanes_zero(), mins[t] = 0;
            for (size_t b = 0; b < n_blocks; b += MOE_LANES_BLOCKS) {
                size_t n = n_blocks - b < MOE_LANES_BLOCKS ? n_blocks - b : MOE_LANES_BLOCKS, t = 0;
                for (size_t i = 0; i < n; i++) {
                    __builtin_prefetch(w + (b + i) * bytes + 2048);
                    unpack(w, b + i, &piece, i);
                }
                for (; t + MOE_LANES_TILE <= nt; t += MOE_LANES_TILE)
                    moe_lanes_tile(MOE_LANES_TILE, has_min, &piece, n, b, x + t, acc + t, mins + t);
                for (; t < nt; t++) moe_lanes_tile(1, has_min, &piece, n, b, x + t, acc + t, mins + t);
            }
            for (size_t t = 0; t < nt; t++) {
                float sum = moe_lanes_sum(acc[t]);
                m->out[(t0 + t) * m->out_stride + r] = has_min ? sum + mins[t] : sum;
            }
        }
    }
}

#define MOE_DERIVE_LANES(NAME)                                                 \
    static void dequantize_row_##NAME(size_t n, const void *w, float *y) {     \
        moe_dequantize_groups(n, w, y, 32, MOE_HAS_MIN_##NAME, unpack_##NAME); \
    }                                                                          \
    static void mul_mat_##NAME(const moe_mul *m) {                             \
        moe_mul_lanes(m, sizeof(block_##NAME), MOE_HAS_MIN_##NAME, lanes_##NAME); \
    }

MOE_DERIVE_LANES(Q5_0)
MOE_DERIVE_LANES(Q5_1)

#endif
