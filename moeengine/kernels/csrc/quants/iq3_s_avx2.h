/* IQ3_S on AVX2. */
MOE_INLINE void prepare_avx2_IQ3_S(const void *block, avx2_grid_block *u) {
    const block_IQ3_S *b = block;
    const __m128i bit = _mm_setr_epi16(1, 2, 4, 8, 16, 32, 64, 128);
    for (size_t g = 0; g < 8; g++) {
        __m128i low = _mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i *)(b->qs + 8 * g)));
        __m128i set = _mm_cmpeq_epi16(_mm_and_si128(_mm_set1_epi16(b->qh[g]), bit), bit);
        __m128i high = _mm_and_si128(set, _mm_set1_epi16(256));
        _mm_storeu_si128((__m128i *)(u->i + 8 * g), _mm_or_si128(low, high));
    }
    __m128i v = _mm_cvtsi32_si128((int)moe_load_u32(b->scales));
    v = _mm_and_si128(_mm_unpacklo_epi8(v, _mm_srli_epi16(v, 4)), _mm_set1_epi8(15));
    u->sc = avx2_both(avx2_odd(_mm_cvtepu8_epi16(v)));
    u->d = moe_load_half(&b->d);
}

MOE_INLINE avx2_grid grid_avx2_IQ3_S(const void *block, const avx2_grid_block *u, size_t g) {
    return (avx2_grid){avx2_grid4(moe_grid_iq3_s, u->i + 8 * g),
                       avx2_signs8(((const block_IQ3_S *)block)->signs + 4 * g)};
}

AVX2_MUL_GRIDS(IQ3_S, 32, 4, 15)
