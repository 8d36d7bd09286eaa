/* Q3_K on AVX2. Weights are multiplied as q + 4, 0 .. 7; 4 times the block sums is taken away. */
/* 16 scales, -32 .. 31. As moe_unpack_scales_q3_K, in registers. */
MOE_INLINE __m128i avx2_scales_q3_K(const uint8_t *packed) {
    __m128i ab = _mm_loadl_epi64((const __m128i *)packed),
            c = _mm_set1_epi32((int32_t)moe_load_u32(packed + 8));
    __m128i low = _mm_and_si128(_mm_unpacklo_epi64(ab, _mm_srli_epi64(ab, 4)), _mm_set1_epi8(15));
    __m128i high = _mm_and_si128(_mm_srlv_epi32(c, _mm_setr_epi32(0, 2, 4, 6)), _mm_set1_epi8(3));
    return _mm_sub_epi8(_mm_or_si128(low, _mm_slli_epi16(high, 4)), _mm_set1_epi8(32));
}

MOE_INLINE avx2_part dot_avx2_Q3_K(const void *block, const block_x_q8_K *x) {
    const block_Q3_K *b = block;
    const __m256i low = _mm256_set1_epi8(3), bit2 = _mm256_set1_epi8(4);
    __m256i sc = _mm256_cvtepi8_epi16(avx2_scales_q3_K(b->scales)), high = avx2_load(b->hmask),
            even, odd;
    __m256i sum = _mm256_madd_epi16(_mm256_slli_epi16(sc, 2), avx2_load(x->sum16));
    sum = _mm256_sub_epi32(_mm256_setzero_si256(), sum);
    avx2_scales_by_half(sc, &even, &odd);
#pragma GCC unroll 2
    for (int j = 0; j < 2; j++) {
        __m256i v = avx2_load(b->qs + 32 * j);
        __m256i s = j ? _mm256_permute2x128_si256(even, odd, 0x31)
                      : _mm256_permute2x128_si256(even, odd, 0x20);
#pragma GCC unroll 4
        for (int k = 0; k < 4; k++) {
            int bit = 4 * j + k;
            __m256i h =
                bit < 2 ? _mm256_slli_epi16(high, 2 - bit) : _mm256_srli_epi16(high, bit - 2);
            __m256i q = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(v, 2 * k), low),
                                        _mm256_and_si256(h, bit2));
            sum = AVX2_SCALED(sum, _mm256_maddubs_epi16(q, avx2_load(x->q + 128 * j + 32 * k)),
                              avx2_spread16(s, k));
        }
    }
    return (avx2_part){sum, _mm256_setzero_si256(), moe_load_half(&b->d), 0.0f};
}

MOE_INLINE void panel_avx2_Q3_K(const uint8_t *const *row, avx2_panel *p) {
    const __m256i low = _mm256_set1_epi8(3), bit2 = _mm256_set1_epi8(4);
    __m256i v[4], high[8];
    uint8_t s8[8][16];
    const uint8_t *s_row[8];
    for (size_t r = 0; r < 8; r++) {
        _mm_storeu_si128((__m128i *)s8[r], avx2_scales_q3_K(row[r] + offsetof(block_Q3_K, scales)));
        s_row[r] = s8[r];
    }
    avx2_columns(s_row, 0, v);
    avx2_panel_scales16(v, 4, p);
    p->d = avx2_halves(row, offsetof(block_Q3_K, d));
    avx2_columns(row, offsetof(block_Q3_K, hmask), high);
    avx2_columns(row, offsetof(block_Q3_K, hmask) + 16, high + 4);
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) { /* dword i of qs: weights of four groups of 32 */
        avx2_columns(row, offsetof(block_Q3_K, qs) + 4 * i, v);
        for (int k = 0; k < 4; k++)
            for (int f = 0; f < 4; f++) {
                int bit = i / 8 * 4 + f;
                __m256i h = high[i % 8 + k];
                h = bit < 2 ? _mm256_slli_epi16(h, 2 - bit) : _mm256_srli_epi16(h, bit - 2);
                p->u[i / 8 * 32 + 8 * f + i % 8 + k] =
                    _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(v[k], 2 * f), low),
                                    _mm256_and_si256(h, bit2));
            }
    }
}

AVX2_MUL_256(Q3_K, 16, 4, 1)
