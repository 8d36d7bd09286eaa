/* Q6_K on AVX2. Weights are multiplied as q, 0 .. 63; 32 times the block sums is taken away. */
MOE_INLINE avx2_part dot_avx2_Q6_K(const void *block, const block_x_q8_K *x) {
    const block_Q6_K *b = block;
    const __m256i low = _mm256_set1_epi8(15), high = _mm256_set1_epi8(0x30);
    __m256i sc = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)b->scales));
    __m256i sum = _mm256_madd_epi16(_mm256_slli_epi16(sc, 5), avx2_load(x->sum16));
    sum = _mm256_sub_epi32(_mm256_setzero_si256(), sum);
    __m256i even, odd;
    avx2_scales_by_half(sc, &even, &odd);
#pragma GCC unroll 2
    for (int j = 0; j < 2; j++) {
        __m256i v0 = avx2_load(b->ql + 64 * j), v1 = avx2_load(b->ql + 64 * j + 32),
                h = avx2_load(b->qh + 32 * j);
        __m256i s = j ? _mm256_permute2x128_si256(even, odd, 0x31)
                      : _mm256_permute2x128_si256(even, odd, 0x20);
        __m256i q[4] = {_mm256_or_si256(_mm256_and_si256(v0, low),
                                        _mm256_and_si256(_mm256_slli_epi16(h, 4), high)),
                        _mm256_or_si256(_mm256_and_si256(v1, low),
                                        _mm256_and_si256(_mm256_slli_epi16(h, 2), high)),
                        _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(v0, 4), low),
                                        _mm256_and_si256(h, high)),
                        _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(v1, 4), low),
                                        _mm256_and_si256(_mm256_srli_epi16(h, 2), high))};
        for (int k = 0; k < 4; k++) {
            __m256i p = _mm256_maddubs_epi16(q[k], avx2_load(x->q + 128 * j + 32 * k));
            sum = AVX2_SCALED(sum, p, avx2_spread16(s, k));
        }
    }
    return (avx2_part){sum, _mm256_setzero_si256(), moe_load_half(&b->d), 0.0f};
}

/* 16 int8 scales of 8 rows, columns v -> scales and, for q + off, the factors of the block sums */
MOE_INLINE void avx2_panel_scales16(const __m256i *v, int off, avx2_panel *p) {
    for (int g = 0; g < 16; g++) /* to the top of an int16 and down again, for the sign */
        p->sc[g] =
            _mm256_srai_epi16(_mm256_slli_epi16(avx2_byte_pair(v[g / 4], g % 4, g % 4), 8), 8);
    for (int g = 0; g < 16; g += 2) {
        __m256i s =
            _mm256_srai_epi16(_mm256_slli_epi16(avx2_byte_pair(v[g / 4], g % 4, g % 4 + 1), 8), 8);
        p->sum[g / 2] = _mm256_mullo_epi16(s, _mm256_set1_epi16((int16_t)-off));
    }
}

MOE_INLINE void panel_avx2_Q6_K(const uint8_t *const *row, avx2_panel *p) {
    const __m256i low = _mm256_set1_epi8(15), high = _mm256_set1_epi8(0x30);
    __m256i v0[4], v1[4], h[4];
    avx2_columns(row, offsetof(block_Q6_K, scales), v0);
    avx2_panel_scales16(v0, 32, p);
    p->d = avx2_halves(row, offsetof(block_Q6_K, d));
    for (int i = 0; i < 16; i += 4) { /* dword i of qh: weights of four groups of 32 */
        int half = i / 8, at = i % 8;
        avx2_columns(row, offsetof(block_Q6_K, ql) + 64 * half + 4 * at, v0);
        avx2_columns(row, offsetof(block_Q6_K, ql) + 64 * half + 32 + 4 * at, v1);
        avx2_columns(row, offsetof(block_Q6_K, qh) + 4 * i, h);
        for (int k = 0; k < 4; k++) {
            __m256i *u = p->u + 32 * half + at + k;
            u[0] = _mm256_or_si256(_mm256_and_si256(v0[k], low),
                                   _mm256_and_si256(_mm256_slli_epi16(h[k], 4), high));
            u[8] = _mm256_or_si256(_mm256_and_si256(v1[k], low),
                                   _mm256_and_si256(_mm256_slli_epi16(h[k], 2), high));
            u[16] = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(v0[k], 4), low),
                                    _mm256_and_si256(h[k], high));
            u[24] = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(v1[k], 4), low),
                                    _mm256_and_si256(_mm256_srli_epi16(h[k], 2), high));
        }
    }
}

AVX2_MUL_256(Q6_K, 16, 2, 1)
