/* Q4_K on AVX2. */

/* 8 scales and 8 mins of 6 bits as int16. As moe_unpack_scales_k4, in registers; reads 16 bytes. */
MOE_INLINE void avx2_scales_k4(const uint8_t *packed, __m128i *sc, __m128i *mn) {
    __m128i v = _mm_loadu_si128((const __m128i *)packed); /* dwords a, b, c */
    __m128i c = _mm_srlv_epi32(_mm_shuffle_epi32(v, 0xaa), _mm_setr_epi32(0, 4, 0, 0));
    __m128i high = _mm_and_si128(_mm_srli_epi32(v, 2), _mm_set1_epi8(0x30));
    __m128i last4 = _mm_or_si128(_mm_and_si128(c, _mm_set1_epi8(15)), high);
    __m128i both = _mm_unpacklo_epi32(_mm_and_si128(v, _mm_set1_epi8(0x3f)), last4);
    *sc = _mm_cvtepu8_epi16(both);
    *mn = _mm_cvtepu8_epi16(_mm_srli_si128(both, 8));
}

MOE_INLINE avx2_part dot_avx2_Q4_K(const void *block, const block_x_q8_K *x) {
    const block_Q4_K *b = block;
    const __m256i low = _mm256_set1_epi8(15);
    __m256i sum = _mm256_setzero_si256();
    __m128i sc8, mn8;
    avx2_scales_k4(b->scales, &sc8, &mn8);
    __m256i sc = _mm256_broadcastsi128_si256(sc8);
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        __m256i v = avx2_load(b->qs + 32 * j);
        __m256i q0 = _mm256_and_si256(v, low), q1 = _mm256_and_si256(_mm256_srli_epi16(v, 4), low);
        __m256i p0 = _mm256_maddubs_epi16(q0, avx2_load(x->q + 64 * j));
        __m256i p1 = _mm256_maddubs_epi16(q1, avx2_load(x->q + 64 * j + 32));
        sum = AVX2_SCALED(sum, p0, avx2_spread16(sc, 2 * j));
        sum = AVX2_SCALED(sum, p1, avx2_spread16(sc, 2 * j + 1));
    }
    __m128i mins = _mm_madd_epi16(mn8, _mm_load_si128((const __m128i *)x->sum32));
    return (avx2_part){sum, _mm256_zextsi128_si256(mins), moe_load_half(&b->d),
                       moe_load_half(&b->dmin)};
}

/* scales and mins of 8 rows: dwords a, b, c of the packed bytes -> the panel */
MOE_INLINE void avx2_panel_scales_k4(__m256i a, __m256i b, __m256i c, avx2_panel *p) {
    const __m256i low6 = _mm256_set1_epi8(0x3f), low4 = _mm256_set1_epi8(15),
                  two = _mm256_set1_epi8(0x30);
    __m256i sc[2] = {
        _mm256_and_si256(a, low6),
        _mm256_or_si256(_mm256_and_si256(c, low4), _mm256_and_si256(_mm256_srli_epi32(a, 2), two))};
    __m256i mn[2] = {_mm256_and_si256(b, low6),
                     _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi32(c, 4), low4),
                                     _mm256_and_si256(_mm256_srli_epi32(b, 2), two))};
    for (int g = 0; g < 8; g++) p->sc[g] = avx2_byte_pair(sc[g / 4], g % 4, g % 4);
    for (int g = 0; g < 8; g += 2) p->sum[g / 2] = avx2_byte_pair(mn[g / 4], g % 4, g % 4 + 1);
}

MOE_INLINE void panel_avx2_Q4_K(const uint8_t *const *row, avx2_panel *p) {
    const __m256i low = _mm256_set1_epi8(15);
    __m256i v[4];
    avx2_columns(row, 0, v);
    avx2_panel_scales_k4(v[1], v[2], v[3], p);
    p->d = avx2_halves(row, offsetof(block_Q4_K, d));
    p->dmin = avx2_halves(row, offsetof(block_Q4_K, dmin));
    for (int f = 0; f < 4; f++) { /* 64 weights: two groups */
        __m256i *u = p->u + 16 * f;
        for (int i = 0; i < 8; i += 4) {
            avx2_columns(row, offsetof(block_Q4_K, qs) + 32 * f + 4 * i, v);
            for (int k = 0; k < 4; k++) {
                u[i + k] = _mm256_and_si256(v[k], low);
                u[i + k + 8] = _mm256_and_si256(_mm256_srli_epi16(v[k], 4), low);
            }
        }
    }
}

AVX2_MUL_256(Q4_K, 32, 8, 0)
