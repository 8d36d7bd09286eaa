/* IQ1_S and IQ1_M on AVX2: weights are -9, -7, -1, 1, 7 or 9, never 0, so q itself gives the signs. */

/* 8 * grid + shift, of 4 grid points of 8; shift: bytes 1 or -1 */
MOE_INLINE avx2_grid avx2_grid_iq1(const uint32_t *i, __m256i shift, int16_t sc0, int16_t sc1) {
    __m256i grid = avx2_grid8(moe_grid_iq1[i[0]], moe_grid_iq1[i[1]], moe_grid_iq1[i[2]], moe_grid_iq1[i[3]]);
    __m256i eight = _mm256_and_si256(_mm256_slli_epi16(grid, 3), _mm256_set1_epi8((char)0xf8));
    __m256i q = _mm256_add_epi8(eight, shift);
    return (avx2_grid){_mm256_abs_epi8(q), q, {sc0, sc1}};
}

MOE_INLINE avx2_grid grid_avx2_IQ1_S(const void *block, size_t g) {
    const block_IQ1_S *b = block;
    uint32_t high = moe_load_u16(b->qh + 2 * g), i[4];
    int16_t sc = (int16_t)(2 * (high >> 12 & 7) + 1);
    for (size_t j = 0; j < 4; j++) i[j] = b->qs[4 * g + j] | (high >> 3 * j & 7) << 8;
    return avx2_grid_iq1(i, _mm256_set1_epi8(high >> 15 ? -1 : 1), sc, sc);
}

MOE_INLINE avx2_grid grid_avx2_IQ1_M(const void *block, size_t g) {
    const block_IQ1_M *b = block;
    uint32_t high = moe_load_u16(b->qh + 2 * g), sc = moe_load_u16(b->scales + g / 2 * 2) >> 6 * (g % 2), i[4];
    for (size_t j = 0; j < 4; j++) i[j] = b->qs[4 * g + j] | (high >> 4 * j & 7) << 8;
    /* bit 3 of each nibble: -1 where set */
    __m256i bits = _mm256_setr_epi64x(high >> 3 & 1, high >> 7 & 1, high >> 11 & 1, high >> 15);
    __m256i minus = _mm256_sub_epi64(_mm256_setzero_si256(), bits);
    return avx2_grid_iq1(i, _mm256_or_si256(minus, _mm256_set1_epi8(1)), (int16_t)(2 * (sc & 7) + 1),
                         (int16_t)(2 * (sc >> 3 & 7) + 1));
}

MOE_INLINE float d_avx2_IQ1_S(const void *block) { return moe_load_half(&((const block_IQ1_S *)block)->d) * 0.125f; }
MOE_INLINE float d_avx2_IQ1_M(const void *block) {
    return f32_from_f16(moe_iq1_m_d(((const block_IQ1_M *)block)->scales)) * 0.125f;
}

AVX2_MUL_GRIDS(IQ1_S, 32, 4, 9)
AVX2_MUL_GRIDS(IQ1_M, 16, 4, 9)
