/* Q5_K on AVX2. */
MOE_INLINE avx2_part dot_avx2_Q5_K(const void *block, const block_x_q8_K *x) {
    const block_Q5_K *b = block;
    const __m256i low = _mm256_set1_epi8(15), bit4 = _mm256_set1_epi8(16);
    __m256i sum = _mm256_setzero_si256(), high = avx2_load(b->qh);
    __m128i sc8, mn8;
    avx2_scales_k4(b->scales, &sc8, &mn8);
    __m256i sc = _mm256_broadcastsi128_si256(sc8);
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        __m256i v = avx2_load(b->qs + 32 * j);
        __m256i h0 =
            j < 2 ? _mm256_slli_epi16(high, 4 - 2 * j) : _mm256_srli_epi16(high, 2 * j - 4);
        __m256i h1 =
            j < 2 ? _mm256_slli_epi16(high, 3 - 2 * j) : _mm256_srli_epi16(high, 2 * j - 3);
        __m256i q0 = _mm256_or_si256(_mm256_and_si256(v, low), _mm256_and_si256(h0, bit4));
        __m256i q1 = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(v, 4), low),
                                     _mm256_and_si256(h1, bit4));
        __m256i p0 = _mm256_maddubs_epi16(q0, avx2_load(x->q + 64 * j));
        __m256i p1 = _mm256_maddubs_epi16(q1, avx2_load(x->q + 64 * j + 32));
        sum = AVX2_SCALED(sum, p0, avx2_spread16(sc, 2 * j));
        sum = AVX2_SCALED(sum, p1, avx2_spread16(sc, 2 * j + 1));
    }
    __m128i mins = _mm_madd_epi16(mn8, _mm_load_si128((const __m128i *)x->sum32));
    return (avx2_part){sum, _mm256_zextsi128_si256(mins), moe_load_half(&b->d),
                       moe_load_half(&b->dmin)};
}

MOE_INLINE void panel_avx2_Q5_K(const uint8_t *const *row, avx2_panel *p) {
    const __m256i low = _mm256_set1_epi8(15), bit4 = _mm256_set1_epi8(16);
    __m256i v[4], high[8];
    avx2_columns(row, 0, v);
    avx2_panel_scales_k4(v[1], v[2], v[3], p);
    p->d = avx2_halves(row, offsetof(block_Q5_K, d));
    p->dmin = avx2_halves(row, offsetof(block_Q5_K, dmin));
    avx2_columns(row, offsetof(block_Q5_K, qh), high);
    avx2_columns(row, offsetof(block_Q5_K, qh) + 16, high + 4);
#pragma GCC unroll 8
    for (int i = 0; i < 32; i += 4) {
        avx2_columns(row, offsetof(block_Q5_K, qs) + 4 * i, v);
        for (int k = 0; k < 4; k++) {
            int j = i / 8 * 16 + i % 8 + k, f = i / 8;
            __m256i h = high[i % 8 + k];
            __m256i h0 = f < 2 ? _mm256_slli_epi16(h, 4 - 2 * f) : _mm256_srli_epi16(h, 2 * f - 4);
            __m256i h1 = f < 2 ? _mm256_slli_epi16(h, 3 - 2 * f) : _mm256_srli_epi16(h, 2 * f - 3);
            p->u[j] = _mm256_or_si256(_mm256_and_si256(v[k], low), _mm256_and_si256(h0, bit4));
            p->u[j + 8] = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(v[k], 4), low),
                                          _mm256_and_si256(h1, bit4));
        }
    }
}

AVX2_MUL_256(Q5_K, 32, 4, 0)
