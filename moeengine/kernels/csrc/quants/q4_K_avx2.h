/* Q4_K on AVX2. */

/* 8 scales (or mins) of 6 bits as int16 */
MOE_INLINE void avx2_scales_k4(const uint8_t *packed, __m128i *sc, __m128i *mn) {
    uint8_t s[8], m[8];
    moe_unpack_scales_k4(packed, s, m);
    *sc = _mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i *)s));
    *mn = _mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i *)m));
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
    return (avx2_part){sum, _mm256_zextsi128_si256(mins), moe_load_half(&b->d), moe_load_half(&b->dmin)};
}

/* scales and mins of 8 rows: dwords a, b, c of the packed bytes -> the panel */
MOE_INLINE void avx2_panel_scales_k4(__m256i a, __m256i b, __m256i c, avx2_panel *p) {
    const __m256i low6 = _mm256_set1_epi8(0x3f), low4 = _mm256_set1_epi8(15), two = _mm256_set1_epi8(0x30);
    __m256i sc[2] = {_mm256_and_si256(a, low6), _mm256_or_si256(_mm256_and_si256(c, low4),
                     _mm256_and_si256(_mm256_srli_epi32(a, 2), two))};
    __m256i mn[2] = {_mm256_and_si256(b, low6), _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi32(c, 4), low4),
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
    for (int i = 0; i < 32; i += 4) { /* dword i of qs: weights of group i/8*2 and the next */
        avx2_columns(row, offsetof(block_Q4_K, qs) + 4 * i, v);
        for (int k = 0; k < 4; k++) {
            int j = i / 8 * 16 + i % 8 + k;
            p->u[j] = _mm256_and_si256(v[k], low);
            p->u[j + 8] = _mm256_and_si256(_mm256_srli_epi16(v[k], 4), low);
        }
    }
}

AVX2_MUL_256(Q4_K, 32, 8, 0)
