/* IQ2_S on AVX2. */
MOE_INLINE void prepare_avx2_IQ2_S(const void *block, avx2_grid_block *u) {
    const block_IQ2_S *b = block;
    const __m256i to_bit_8 = _mm256_set1_epi64x(0x0004001000400100); /* 2^(8-2j) for index j of 4 */
    for (size_t k = 0; k < 2; k++) {
        __m256i low = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(b->qs + 16 * k)));
        const __m256i four_times =
            _mm256_setr_epi8(0, -1, 0, -1, 0, -1, 0, -1, 1, -1, 1, -1, 1, -1, 1, -1, 2, -1, 2, -1,
                             2, -1, 2, -1, 3, -1, 3, -1, 3, -1, 3, -1);
        __m256i high = _mm256_shuffle_epi8(avx2_dword(b->qh + 4 * k), four_times);
        high = _mm256_and_si256(_mm256_mullo_epi16(high, to_bit_8), _mm256_set1_epi16(0x300));
        _mm256_storeu_si256((__m256i *)(u->i + 16 * k), _mm256_or_si256(low, high));
    }
    u->sc = avx2_nibble_scales(b->scales);
    u->d = moe_load_half(&b->d) * 0.125f;
}

MOE_INLINE avx2_grid grid_avx2_IQ2_S(const void *block, const avx2_grid_block *u, size_t g) {
    const uint16_t *i = u->i + 4 * g;
    return (avx2_grid){avx2_grid8(moe_grid_iq2_s[i[0]], moe_grid_iq2_s[i[1]], moe_grid_iq2_s[i[2]],
                                  moe_grid_iq2_s[i[3]]),
                       avx2_signs8(((const block_IQ2_S *)block)->signs + 4 * g)};
}

AVX2_MUL_GRIDS(IQ2_S, 16, 1, 43)
