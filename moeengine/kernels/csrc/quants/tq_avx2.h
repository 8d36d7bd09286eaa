/* TQ1_0 and TQ2_0 on AVX2: a block as 8 vectors of digits 0..2 in the order of the weights; the weight is the digit - 1. */
typedef void avx2_digits(const void *block, __m256i u[8]);

MOE_INLINE void digits_avx2_TQ2_0(const void *block, __m256i u[8]) {
    const block_TQ2_0 *b = block;
    const __m256i two_bits = _mm256_set1_epi8(3);
    for (int h = 0; h < 2; h++) {
        __m256i v = avx2_load(b->qs + 32 * h);
        for (int k = 0; k < 4; k++) u[4 * h + k] = _mm256_and_si256(_mm256_srli_epi16(v, 2 * k), two_bits);
    }
}

/* 3 * v / 256 of bytes: 0 below 86, 1 below 171 */
MOE_INLINE __m256i avx2_first_digit(__m256i v) {
    __m256i one = _mm256_cmpeq_epi8(_mm256_max_epu8(v, _mm256_set1_epi8(86)), v);
    __m256i two = _mm256_cmpeq_epi8(_mm256_max_epu8(v, _mm256_set1_epi8((char)171)), v);
    return _mm256_sub_epi8(_mm256_setzero_si256(), _mm256_add_epi8(one, two));
}

MOE_INLINE __m256i avx2_times_3(__m256i v) { return _mm256_add_epi8(v, _mm256_add_epi8(v, v)); }
MOE_INLINE __m128i avx2_times_3_of_16(__m128i v) { return _mm_add_epi8(v, _mm_add_epi8(v, v)); }

MOE_INLINE void digits_avx2_TQ1_0(const void *block, __m256i u[8]) {
    const block_TQ1_0 *b = block;
    __m256i v = avx2_load(b->qs);
    for (int n = 0; n < 5; n++) {
        u[n] = avx2_first_digit(v);
        v = avx2_times_3(v);
    }
    __m128i part[6]; /* 16 bytes times 1, 3, .. 81; the 4 of qh times 1, 3, 9, 27 */
    part[0] = _mm_loadu_si128((const __m128i *)(b->qs + 32));
    for (int n = 1; n < 5; n++) part[n] = avx2_times_3_of_16(part[n - 1]);
    __m128i qh = _mm_cvtsi32_si128((int)moe_load_u32(b->qh)), three = avx2_times_3_of_16(qh), nine = avx2_times_3_of_16(three);
    part[5] = _mm_unpacklo_epi64(_mm_unpacklo_epi32(qh, three), _mm_unpacklo_epi32(nine, avx2_times_3_of_16(nine)));
    for (int k = 0; k < 3; k++) u[5 + k] = avx2_first_digit(_mm256_setr_m128i(part[2 * k], part[2 * k + 1]));
}

/* The 8 sums of pairs are at most 8 * 2 * 3 * 127 < 2^15. */
MOE_INLINE avx2_part avx2_dot_digits(const void *block, const block_x_q8_K *x, const void *d, avx2_digits *digits) {
    const __m256i one = _mm256_set1_epi16(1);
    __m256i u[8], sum = _mm256_setzero_si256();
    digits(block, u);
    for (int k = 0; k < 8; k++) sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(u[k], avx2_load(x->q + 32 * k)));
    sum = _mm256_sub_epi32(_mm256_madd_epi16(sum, one), _mm256_madd_epi16(avx2_load(x->sum16), one));
    return (avx2_part){sum, _mm256_setzero_si256(), moe_load_half(d), 0.0f};
}

MOE_INLINE void avx2_panel_digits(const uint8_t *const *row, size_t d, avx2_digits *digits, avx2_panel *p) {
    uint8_t q[8][256];
    const uint8_t *q_row[8];
    for (size_t r = 0; r < 8; r++) {
        __m256i u[8];
        digits(row[r], u);
        for (int k = 0; k < 8; k++) _mm256_storeu_si256((__m256i *)(q[r] + 32 * k), u[k]);
        q_row[r] = q[r];
    }
    for (size_t j = 0; j < 64; j += 4) avx2_columns(q_row, 4 * j, p->u + j);
    for (int g = 0; g < 8; g++) p->sc[g] = _mm256_set1_epi16(1);
    for (int g = 0; g < 4; g++) p->sum[g] = _mm256_set1_epi16(-1);
    p->d = avx2_halves(row, d);
}

#define AVX2_MUL_DIGITS(NAME)                                                                             \
    MOE_INLINE avx2_part dot_avx2_##NAME(const void *block, const block_x_q8_K *x) {                      \
        return avx2_dot_digits(block, x, &((const block_##NAME *)block)->d, digits_avx2_##NAME);          \
    }                                                                                                     \
    MOE_INLINE void panel_avx2_##NAME(const uint8_t *const *row, avx2_panel *p) {                         \
        avx2_panel_digits(row, offsetof(block_##NAME, d), digits_avx2_##NAME, p);                         \
    }                                                                                                     \
    AVX2_MUL_256(NAME, 32, 8, 1)

AVX2_MUL_DIGITS(TQ1_0)
AVX2_MUL_DIGITS(TQ2_0)
