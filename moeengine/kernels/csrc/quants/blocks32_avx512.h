/* AVX-512: steps of the types with small blocks. Nibbles: the low ones of 16 bytes are the first half of a group, the
 * high ones the second. vpermb looks up what has a table; bits above an index do not matter to it when
 * the table stands in it several times. */

/* 16 bytes of nibbles -> 8 steps; table: 16 weights, four times */
MOE_INLINE void moe_table_nibbles(moe_sink32 *s, const __m512i t[4], __m512i table) {
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++)
        moe_sink32_step(s, j, _mm512_permutexvar_epi8(j < 4 ? t[j] : _mm512_srli_epi32(t[j - 4], 4), table));
}

MOE_INLINE __m512i moe_plain_nibble(const __m512i t[4], const int j) {
    return _mm512_and_si512(j < 4 ? t[j] : _mm512_srli_epi32(t[j - 4], 4), _mm512_set1_epi8(0x0f));
}

MOE_INLINE void rows_avx512_Q4_0(const moe_rows *r, moe_sink32 *s) {
    __m512i t[4];
    __m512 d = moe_load_halves(r, offsetof(block_Q4_0, d));
    moe_load_16(r, offsetof(block_Q4_0, qs), t);
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++) moe_sink32_step(s, j, moe_plain_nibble(t, j));
    moe_sink32_scale(s, 0, d, d);
}
MOE_DERIVE_AVX512_32(Q4_0, offset8_32, 32)

MOE_INLINE void rows_avx512_Q4_1(const moe_rows *r, moe_sink32 *s) {
    __m512i t[4], dm = moe_load_4(r, offsetof(block_Q4_1, d));
    moe_load_16(r, offsetof(block_Q4_1, qs), t);
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++) moe_sink32_step(s, j, moe_plain_nibble(t, j));
    moe_sink32_scale(s, 0, moe_low_half(dm), moe_high_half(dm));
}
MOE_DERIVE_AVX512_32(Q4_1, min_32, 32)

MOE_INLINE void rows_avx512_Q8_0(const moe_rows *r, moe_sink32 *s) {
    __m512i t[8];
    __m512 d = moe_load_halves(r, offsetof(block_Q8_0, d));
    moe_load_32(r, offsetof(block_Q8_0, qs), t);
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++) moe_sink32_step(s, j, _mm512_xor_si512(t[j], _mm512_set1_epi8(-128)));
    moe_sink32_scale(s, 0, d, d);
}
MOE_DERIVE_AVX512_32(Q8_0, signed_32, 32)

MOE_INLINE void rows_avx512_IQ4_NL(const moe_rows *r, moe_sink32 *s) {
    __m512i t[4];
    __m512 d = moe_load_halves(r, offsetof(block_IQ4_NL, d));
    moe_load_16(r, offsetof(block_IQ4_NL, qs), t);
    moe_table_nibbles(s, t, moe_iq4_table());
    moe_sink32_scale(s, 0, d, d);
}
MOE_DERIVE_AVX512_32(IQ4_NL, signed_32, 32)

/* values of the FP4 types + 16 */
MOE_INLINE __m512i moe_fp4_table(void) {
    __m128i values = _mm_load_si128((const void *)moe_values_mxfp4);
    return _mm512_broadcast_i32x4(_mm_add_epi8(values, _mm_set1_epi8(16)));
}

/* moe_e8m0_half of 16 numbers */
MOE_INLINE __m512 moe_e8m0_half_16(__m512i e) {
    return _mm512_scalef_ps(_mm512_set1_ps(1.0f), _mm512_cvtepi32_ps(_mm512_sub_epi32(e, _mm512_set1_epi32(128))));
}

MOE_INLINE void rows_avx512_MXFP4(const moe_rows *r, moe_sink32 *s) {
    __m512i t[4];
    __m256i first = _mm256_set_m128i(moe_eight_rows_2(r, 0, 8), moe_eight_rows_2(r, 0, 0)); /* e and a byte of qs */
    __m512 d = moe_e8m0_half_16(_mm512_cvtepu16_epi32(_mm256_and_si256(first, _mm256_set1_epi16(255))));
    moe_load_16(r, offsetof(block_MXFP4, qs), t);
    moe_table_nibbles(s, t, moe_fp4_table());
    moe_sink32_scale(s, 0, d, d);
}
MOE_DERIVE_AVX512_32(MXFP4, offset16_32, 32)

/* moe_ue4m3_half of 16 numbers */
MOE_INLINE __m512 moe_ue4m3_half_16(__m512i x) {
    __m512i low = _mm512_and_si512(x, _mm512_set1_epi32(7)), all = _mm512_and_si512(x, _mm512_set1_epi32(0x7f));
    __m512i normal = _mm512_add_epi32(_mm512_slli_epi32(all, 20), _mm512_set1_epi32(119 << 23));
    __m512 subnormal = _mm512_mul_ps(_mm512_cvtepi32_ps(low), _mm512_set1_ps(0x1p-10f));
    __m512 v = _mm512_mask_mov_ps(_mm512_castsi512_ps(normal), _mm512_cmplt_epu32_mask(all, _mm512_set1_epi32(8)), subnormal);
    return _mm512_maskz_mov_ps(_mm512_cmpneq_epi32_mask(x, _mm512_set1_epi32(0x7f)), v);
}

MOE_INLINE void rows_avx512_NVFP4(const moe_rows *r, moe_sink32 *s) {
    const __m512i table = moe_fp4_table();
    __m512i t[8], scales = moe_load_4(r, offsetof(block_NVFP4, d));
    moe_load_32(r, offsetof(block_NVFP4, qs), t);
#pragma GCC unroll 4
    for (int g = 0; g < 4; g++) {
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
            __m512i q = t[2 * g + j % 2];
            moe_sink32_step(s, 4 * g + j, _mm512_permutexvar_epi8(j < 2 ? q : _mm512_srli_epi32(q, 4), table));
        }
        __m512 d = moe_ue4m3_half_16(moe_byte(scales, g));
        moe_sink32_scale(s, g, d, d);
    }
}
MOE_DERIVE_AVX512_32(NVFP4, offset16_16, 64)
