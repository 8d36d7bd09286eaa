/* IQ1_S and IQ1_M on AVX2: weights are -9, -7, -1, 1, 7 or 9, never 0, so q itself gives the signs.
 */

/* 8 * grid + shift, of 4 grid points of 8; shift: bytes 1 or -1 */
MOE_INLINE avx2_grid avx2_grid_iq1(const uint16_t *i, __m256i shift) {
    __m256i grid =
        avx2_grid8(moe_grid_iq1[i[0]], moe_grid_iq1[i[1]], moe_grid_iq1[i[2]], moe_grid_iq1[i[3]]);
    __m256i eight = _mm256_and_si256(_mm256_slli_epi16(grid, 3), _mm256_set1_epi8((char)0xf8));
    __m256i q = _mm256_add_epi8(eight, shift);
    return (avx2_grid){_mm256_abs_epi8(q), q};
}

MOE_INLINE void prepare_avx2_IQ1_S(const void *block, avx2_grid_block *u) {
    const block_IQ1_S *b = block;
    const __m256i to_bit_8 =
        _mm256_set1_epi64x(0x0000000400200100); /* 2^(8-3j) for index j < 3 of 4 */
    __m128i words = _mm_loadu_si128((const __m128i *)b->qh);
    __m128i pair[2] = {_mm_unpacklo_epi16(words, words), _mm_unpackhi_epi16(words, words)};
    for (size_t k = 0; k < 2; k++) {
        __m256i low = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(b->qs + 16 * k)));
        __m256i high = _mm256_setr_m128i(_mm_unpacklo_epi32(pair[k], pair[k]),
                                         _mm_unpackhi_epi32(pair[k], pair[k]));
        high = _mm256_blend_epi16(_mm256_mullo_epi16(high, to_bit_8), _mm256_srli_epi16(high, 1),
                                  0x88);
        high = _mm256_and_si256(high, _mm256_set1_epi16(0x700));
        _mm256_storeu_si256((__m256i *)(u->i + 16 * k), _mm256_or_si256(low, high));
    }
    u->sc = avx2_both(avx2_odd(_mm_and_si128(_mm_srli_epi16(words, 12), _mm_set1_epi16(7))));
    u->d = moe_load_half(&b->d) * 0.125f;
}

MOE_INLINE avx2_grid grid_avx2_IQ1_S(const void *block, const avx2_grid_block *u, size_t g) {
    const uint8_t *high = ((const block_IQ1_S *)block)->qh + 2 * g;
    return avx2_grid_iq1(u->i + 4 * g, _mm256_set1_epi8(high[1] >> 7 ? -1 : 1));
}

MOE_INLINE void prepare_avx2_IQ1_M(const void *block, avx2_grid_block *u) {
    const block_IQ1_M *b = block;
    __m128i v = _mm_loadu_si128((const __m128i *)b->qh), mask = _mm_set1_epi8(15);
    __m128i low = _mm_and_si128(v, mask), high = _mm_and_si128(_mm_srli_epi16(v, 4), mask);
    __m128i nibble[2] = {_mm_unpacklo_epi8(low, high), _mm_unpackhi_epi8(low, high)};
    for (size_t k = 0; k < 2; k++) {
        __m256i index = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(b->qs + 16 * k)));
        __m256i top =
            _mm256_slli_epi16(_mm256_cvtepu8_epi16(nibble[k]), 8); /* bit 11: the sign of delta */
        __m256i bits = _mm256_and_si256(top, _mm256_set1_epi16(0x700));
        _mm256_storeu_si256((__m256i *)(u->i + 16 * k), _mm256_or_si256(index, bits));
        /* all ones where the sign is set */
        _mm256_storeu_si256((__m256i *)(u->s + 16 * k),
                            _mm256_srai_epi16(_mm256_slli_epi16(top, 4), 15));
    }
    __m128i s = _mm_loadl_epi64((const __m128i *)b->scales), seven = _mm_set1_epi16(7);
    s = _mm_unpacklo_epi16(s, s);
    __m128i first = _mm_blend_epi16(s, _mm_srli_epi16(s, 6), 0xaa);
    __m128i second = _mm_blend_epi16(_mm_srli_epi16(s, 3), _mm_srli_epi16(s, 9), 0xaa);
    u->sc = _mm256_setr_m128i(avx2_odd(_mm_and_si128(first, seven)),
                              avx2_odd(_mm_and_si128(second, seven)));
    u->d = f32_from_f16(moe_iq1_m_d(b->scales)) * 0.125f;
}

MOE_INLINE avx2_grid grid_avx2_IQ1_M(const void *block, const avx2_grid_block *u, size_t g) {
    __m128i minus = _mm_loadl_epi64((const __m128i *)(u->s + 4 * g));
    minus = _mm_unpacklo_epi16(minus, minus); /* dword j: index j */
    __m256i shift = _mm256_cvtepi32_epi64(minus);
    (void)block;
    return avx2_grid_iq1(u->i + 4 * g, _mm256_or_si256(shift, _mm256_set1_epi8(1)));
}

AVX2_MUL_GRIDS(IQ1_S, 32, 4, 9)
AVX2_MUL_GRIDS(IQ1_M, 16, 4, 9)
