/* Q2_K on AVX2. */
MOE_INLINE avx2_part dot_avx2_Q2_K(const void *block, const block_x_q8_K *x) {
    const block_Q2_K *b = block;
    const __m256i low = _mm256_set1_epi8(3);
    __m128i packed = _mm_loadu_si128((const __m128i *)b->scales), low4 = _mm_set1_epi8(15);
    __m256i sc = _mm256_cvtepu8_epi16(_mm_and_si128(packed, low4));
    __m256i mn = _mm256_cvtepu8_epi16(_mm_and_si128(_mm_srli_epi16(packed, 4), low4));
    __m256i sum = _mm256_setzero_si256(), even, odd;
    avx2_scales_by_half(sc, &even, &odd);
#pragma GCC unroll 2
    for (int j = 0; j < 2; j++) {
        __m256i v = avx2_load(b->qs + 32 * j);
        __m256i s = j ? _mm256_permute2x128_si256(even, odd, 0x31)
                      : _mm256_permute2x128_si256(even, odd, 0x20);
#pragma GCC unroll 4
        for (int k = 0; k < 4; k++) {
            __m256i q = _mm256_and_si256(_mm256_srli_epi16(v, 2 * k), low);
            sum = AVX2_SCALED(sum, _mm256_maddubs_epi16(q, avx2_load(x->q + 128 * j + 32 * k)),
                              avx2_spread16(s, k));
        }
    }
    __m256i mins = _mm256_madd_epi16(mn, avx2_load(x->sum16));
    return (avx2_part){sum, mins, moe_load_half(&b->d), moe_load_half(&b->dmin)};
}

MOE_INLINE void panel_avx2_Q2_K(const uint8_t *const *row, avx2_panel *p) {
    const __m256i low = _mm256_set1_epi8(3), low4 = _mm256_set1_epi8(15);
    __m256i v[4];
    avx2_columns(row, offsetof(block_Q2_K, scales), v);
    for (int g = 0; g < 16; g++)
        p->sc[g] = avx2_byte_pair(_mm256_and_si256(v[g / 4], low4), g % 4, g % 4);
    for (int g = 0; g < 16; g += 2)
        p->sum[g / 2] = avx2_byte_pair(_mm256_and_si256(_mm256_srli_epi16(v[g / 4], 4), low4),
                                       g % 4, g % 4 + 1);
    p->d = avx2_halves(row, offsetof(block_Q2_K, d));
    p->dmin = avx2_halves(row, offsetof(block_Q2_K, dmin));
    for (int i = 0; i < 16; i += 4) { /* dword i of qs: weights of four groups of 32 */
        avx2_columns(row, offsetof(block_Q2_K, qs) + 4 * i, v);
        for (int k = 0; k < 4; k++)
            for (int f = 0; f < 4; f++)
                p->u[i / 8 * 32 + 8 * f + i % 8 + k] =
                    _mm256_and_si256(_mm256_srli_epi16(v[k], 2 * f), low);
    }
}

AVX2_MUL_256(Q2_K, 16, 4, 0)
