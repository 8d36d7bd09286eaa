/* IQ4_XS on AVX2. Values up to 127 do not fit an unsigned byte product: panels are signed. */
MOE_INLINE __m256i avx2_iq4_xs_bytes(const block_IQ4_XS *b, size_t g) {
    __m256i values =
        _mm256_broadcastsi128_si256(_mm_load_si128((const __m128i *)moe_values_iq4_nl));
    return _mm256_shuffle_epi8(values, avx2_nibbles(b->qs + 16 * g));
}

MOE_INLINE int16_t avx2_iq4_xs_scale(const block_IQ4_XS *b, size_t g) {
    uint32_t high = moe_load_u16(&b->scales_h), low = b->scales_l[g / 2];
    return (int16_t)((int)((low >> 4 * (g % 2) & 15) | (high >> 2 * g & 3) << 4) - 32);
}

MOE_INLINE avx2_part dot_avx2_IQ4_XS(const void *block, const block_x_q8_K *x) {
    const block_IQ4_XS *b = block;
    __m256i sum = _mm256_setzero_si256();
    for (size_t g = 0; g < 8; g++) {
        __m256i q = avx2_iq4_xs_bytes(b, g), y = avx2_load(x->q + 32 * g);
        __m256i p = _mm256_maddubs_epi16(_mm256_abs_epi8(q), _mm256_sign_epi8(y, q));
        sum = AVX2_SCALED(sum, p, _mm256_set1_epi16(avx2_iq4_xs_scale(b, g)));
    }
    return (avx2_part){sum, _mm256_setzero_si256(), moe_load_half(&b->d), 0.0f};
}

MOE_INLINE void panel_avx2_IQ4_XS(const uint8_t *const *row, avx2_panel *p) {
    uint8_t q[8][256];
    const uint8_t *q_row[8];
    int16_t sc[8][8][2];
    for (size_t r = 0; r < 8; r++) {
        const block_IQ4_XS *b = (const block_IQ4_XS *)row[r];
        q_row[r] = q[r];
        for (size_t g = 0; g < 8; g++) {
            _mm256_storeu_si256((__m256i *)(q[r] + 32 * g), avx2_iq4_xs_bytes(b, g));
            sc[g][r][0] = sc[g][r][1] = avx2_iq4_xs_scale(b, g);
        }
    }
    for (size_t j = 0; j < 64; j += 4) avx2_columns(q_row, 4 * j, p->u + j);
    memcpy(p->sc, sc, sizeof sc);
    p->d = avx2_halves(row, offsetof(block_IQ4_XS, d));
}

AVX2_MUL_256(IQ4_XS, 32, 0, 0)
