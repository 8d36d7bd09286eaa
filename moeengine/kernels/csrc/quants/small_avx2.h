/* The types with small blocks on AVX2: a block's weights as bytes, see mul_avx2_groups.h. */

MOE_INLINE avx2_group bytes_avx2_Q4_0(const void *row, size_t i) {
    const block_Q4_0 *b = (const block_Q4_0 *)row + i;
    return (avx2_group){avx2_nibbles(b->qs), moe_load_half(&b->d), 0.0f};
}

MOE_INLINE avx2_group bytes_avx2_Q4_1(const void *row, size_t i) {
    const block_Q4_1 *b = (const block_Q4_1 *)row + i;
    return (avx2_group){avx2_nibbles(b->qs), moe_load_half(&b->d), moe_load_half(&b->m)};
}

MOE_INLINE avx2_group bytes_avx2_Q8_0(const void *row, size_t i) {
    const block_Q8_0 *b = (const block_Q8_0 *)row + i;
    return (avx2_group){avx2_load(b->qs), moe_load_half(&b->d), 0.0f};
}

MOE_INLINE avx2_group bytes_avx2_IQ4_NL(const void *row, size_t i) {
    const block_IQ4_NL *b = (const block_IQ4_NL *)row + i;
    __m256i values =
        _mm256_broadcastsi128_si256(_mm_load_si128((const __m128i *)moe_values_iq4_nl));
    return (avx2_group){_mm256_shuffle_epi8(values, avx2_nibbles(b->qs)), moe_load_half(&b->d),
                        0.0f};
}

MOE_INLINE avx2_group bytes_avx2_MXFP4(const void *row, size_t i) {
    const block_MXFP4 *b = (const block_MXFP4 *)row + i;
    __m128i values =
        _mm_add_epi8(_mm_load_si128((const __m128i *)moe_values_mxfp4), _mm_set1_epi8(12));
    __m256i q = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(values), avx2_nibbles(b->qs));
    return (avx2_group){q, moe_e8m0_half(b->e), 0.0f};
}

MOE_INLINE avx2_group bytes_avx2_NVFP4(const void *row, size_t i) {
    const block_NVFP4 *b = (const block_NVFP4 *)row + i / 2;
    const uint8_t *d = b->d + i % 2 * 2;
    __m128i v = _mm_loadu_si128((const __m128i *)(b->qs + i % 2 * 16)), mask = _mm_set1_epi8(15);
    __m128i low = _mm_and_si128(v, mask), high = _mm_and_si128(_mm_srli_epi16(v, 4), mask);
    __m256i q = _mm256_setr_m128i(_mm_unpacklo_epi64(low, high), _mm_unpackhi_epi64(low, high));
    __m256i values = _mm256_broadcastsi128_si256(_mm_load_si128((const __m128i *)moe_values_mxfp4));
    return (avx2_group){_mm256_shuffle_epi8(values, q), moe_ue4m3_half(d[0]), moe_ue4m3_half(d[1])};
}

AVX2_MUL_GROUPS(Q4_0, sizeof(block_Q4_0), 0, 8, 8)
AVX2_MUL_GROUPS(Q4_1, sizeof(block_Q4_1), 0, 8, 0)
AVX2_MUL_GROUPS(Q8_0, sizeof(block_Q8_0), 0, 0, 0)
AVX2_MUL_GROUPS(IQ4_NL, sizeof(block_IQ4_NL), 0, 0, 0)
AVX2_MUL_GROUPS(MXFP4, sizeof(block_MXFP4), 0, 4, 12)
AVX2_MUL_GROUPS(NVFP4, sizeof(block_NVFP4) / 2, 1, 0, 0)
