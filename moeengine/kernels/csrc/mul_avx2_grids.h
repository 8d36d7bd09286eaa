/* Matrix products on AVX2 of the types whose weights are grid values with signs; the plan is that
 * of mul_avx2.h.
 *
 * A type gives
 *   prepare_avx2_NAME  what is the same work for all of a block: indices, scales, d
 *   grid_avx2_NAME     sub-block g (0 .. 7) of a block, 32 weights */
#ifndef MOE_MUL_AVX2_GRIDS_H
#define MOE_MUL_AVX2_GRIDS_H
#include "mul_avx2.h"

typedef struct avx2_grid_block {
    __m256i sc; /* int16: low half: scales of the first 16 weights of the 8 sub-blocks, high half:
                   of the others */
    float d;
    uint16_t i[64]; /* grid indices, where they are not plain bytes */
    uint16_t s[32]; /* sign indices of IQ2_XS */
} avx2_grid_block;
typedef void avx2_prepare(const void *block, avx2_grid_block *u);

typedef struct avx2_grid { /* 32 weights: q = values * signs */
    __m256i values;        /* bytes, 0 .. off */
    __m256i signs;         /* bytes, of which only the sign counts */
} avx2_grid;
typedef avx2_grid avx2_grid32(const void *block, const avx2_grid_block *u, size_t g);

/* 2 * s + 1 */
MOE_INLINE __m128i avx2_odd(__m128i s) {
    return _mm_add_epi16(_mm_add_epi16(s, s), _mm_set1_epi16(1));
}
MOE_INLINE __m256i avx2_both(__m128i v) { return _mm256_broadcastsi128_si256(v); }

/* 8 bytes of two scales each: low nibbles are of the first 16 weights, high nibbles of the others
 */
MOE_INLINE __m256i avx2_nibble_scales(const uint8_t *p) {
    __m128i v = _mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i *)p));
    return _mm256_setr_m128i(avx2_odd(_mm_and_si128(v, _mm_set1_epi16(15))),
                             avx2_odd(_mm_srli_epi16(v, 4)));
}

/* the top 4 bits of 8 dwords */
MOE_INLINE __m256i avx2_top_scales(__m256i v) {
    v = _mm256_srli_epi32(v, 28);
    v = _mm256_permute4x64_epi64(_mm256_packus_epi32(v, v), 0x88);
    return _mm256_add_epi16(_mm256_add_epi16(v, v), _mm256_set1_epi16(1));
}

/* four bytes each of 8 places */
MOE_INLINE __m256i avx2_grid4(const uint8_t (*grid)[4], const uint16_t *i) {
    return _mm256_setr_epi32((int)moe_load_u32(grid[i[0]]), (int)moe_load_u32(grid[i[1]]),
                             (int)moe_load_u32(grid[i[2]]), (int)moe_load_u32(grid[i[3]]),
                             (int)moe_load_u32(grid[i[4]]), (int)moe_load_u32(grid[i[5]]),
                             (int)moe_load_u32(grid[i[6]]), (int)moe_load_u32(grid[i[7]]));
}

/* eight bytes each of 4 places */
MOE_INLINE __m256i avx2_grid8(const void *a, const void *b, const void *c, const void *d) {
    __m128i lo = _mm_loadl_epi64((const __m128i *)a), hi = _mm_loadl_epi64((const __m128i *)c);
    lo = _mm_unpacklo_epi64(lo, _mm_loadl_epi64((const __m128i *)b));
    hi = _mm_unpacklo_epi64(hi, _mm_loadl_epi64((const __m128i *)d));
    return _mm256_inserti128_si256(_mm256_castsi128_si256(lo), hi, 1);
}

/* 4 x 7 sign bits */
MOE_INLINE __m256i avx2_signs7(uint32_t bits) {
    return avx2_grid8(moe_signs7_bytes[bits & 127], moe_signs7_bytes[bits >> 7 & 127],
                      moe_signs7_bytes[bits >> 14 & 127], moe_signs7_bytes[bits >> 21 & 127]);
}

/* 4 x 8 sign bits */
MOE_INLINE __m256i avx2_signs8(const uint8_t *bits) {
    return avx2_grid8(moe_signs8[bits[0]], moe_signs8[bits[1]], moe_signs8[bits[2]],
                      moe_signs8[bits[3]]);
}

MOE_INLINE avx2_part avx2_dot_grids(const void *block, const block_x_q8_K *x, avx2_prepare *prepare,
                                    avx2_grid32 *grid32) {
    __m256i sum = _mm256_setzero_si256();
    avx2_grid_block u;
    prepare(block, &u);
#pragma GCC unroll 8
    for (size_t g = 0; g < 8; g++) {
        avx2_grid q = grid32(block, &u, g);
        __m256i p =
            _mm256_maddubs_epi16(q.values, _mm256_sign_epi8(avx2_load(x->q + 32 * g), q.signs));
        sum = AVX2_SCALED(sum, p, avx2_spread16(u.sc, (int)g));
    }
    return (avx2_part){sum, _mm256_setzero_si256(), u.d, 0.0f};
}

/* scales of 8 rows, as avx2_grid_block.sc -> the panel */
MOE_INLINE void avx2_panel_grid_scales(const __m256i *row_sc, int group, int off, avx2_panel *p) {
    const __m256i first = _mm256_setr_epi8(0, 1, 0, 1, 4, 5, 4, 5, 8, 9, 8, 9, 12, 13, 12, 13, 0, 1,
                                           0, 1, 4, 5, 4, 5, 8, 9, 8, 9, 12, 13, 12, 13);
    const __m256i second = _mm256_add_epi8(first, _mm256_set1_epi8(2)),
                  minus = _mm256_set1_epi16((int16_t)-off);
    const uint8_t *row[8];
    __m256i low[4],
        high[4]; /* dword j: scales of sub-blocks 2j and 2j+1, first and second 16 weights */
    for (size_t r = 0; r < 8; r++) row[r] = (const uint8_t *)(row_sc + r);
    avx2_columns(row, 0, low);
    if (group == 16) avx2_columns(row, 16, high);
    for (int j = 0; j < 4; j++) {
        if (group == 32) {
            p->sc[2 * j] = _mm256_shuffle_epi8(low[j], first);
            p->sc[2 * j + 1] = _mm256_shuffle_epi8(low[j], second);
            p->sum[j] = _mm256_mullo_epi16(low[j], minus);
            continue;
        }
        p->sc[4 * j] = _mm256_shuffle_epi8(low[j], first);
        p->sc[4 * j + 1] = _mm256_shuffle_epi8(high[j], first);
        p->sc[4 * j + 2] = _mm256_shuffle_epi8(low[j], second);
        p->sc[4 * j + 3] = _mm256_shuffle_epi8(high[j], second);
        __m256i even = _mm256_blend_epi16(low[j], _mm256_slli_epi32(high[j], 16), 0xaa);
        __m256i odd = _mm256_blend_epi16(_mm256_srli_epi32(low[j], 16), high[j], 0xaa);
        p->sum[2 * j] = _mm256_mullo_epi16(even, minus);
        p->sum[2 * j + 1] = _mm256_mullo_epi16(odd, minus);
    }
}

MOE_INLINE void avx2_panel_grids(const uint8_t *const *row, int group, int off,
                                 avx2_prepare *prepare, avx2_grid32 *grid32, avx2_panel *p) {
    uint8_t q[8][256];
    const uint8_t *q_row[8];
    __m256i sc[8];
    float d[8];
    for (size_t r = 0; r < 8; r++) {
        avx2_grid_block u;
        prepare(row[r], &u);
        sc[r] = u.sc, d[r] = u.d;
        q_row[r] = q[r];
        for (size_t g = 0; g < 8; g++) {
            avx2_grid w = grid32(row[r], &u, g);
            __m256i v =
                _mm256_add_epi8(_mm256_sign_epi8(w.values, w.signs), _mm256_set1_epi8((char)off));
            _mm256_storeu_si256((__m256i *)(q[r] + 32 * g), v);
        }
    }
    for (size_t j = 0; j < 64; j += 4) avx2_columns(q_row, 4 * j, p->u + j);
    avx2_panel_grid_scales(sc, group, off, p);
    p->d = _mm256_loadu_ps(d);
}

/* mul_mat_avx2_NAME from prepare_avx2_NAME and grid_avx2_NAME */
#define AVX2_MUL_GRIDS(NAME, group, steps, off)                                      \
    MOE_INLINE avx2_part dot_avx2_##NAME(const void *block, const block_x_q8_K *x) { \
        return avx2_dot_grids(block, x, prepare_avx2_##NAME, grid_avx2_##NAME);      \
    }                                                                                \
    MOE_INLINE void panel_avx2_##NAME(const uint8_t *const *row, avx2_panel *p) {    \
        avx2_panel_grids(row, group, off, prepare_avx2_##NAME, grid_avx2_##NAME, p); \
    }                                                                                \
    AVX2_MUL_256(NAME, group, steps, 1)

#endif
