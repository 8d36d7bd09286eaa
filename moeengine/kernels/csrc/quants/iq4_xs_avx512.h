/* IQ4_XS on AVX-512. vpermb looks up the nibbles, and does not mind what is above them: the table of 16 values
 * stands in it four times. */

/* values + 128 */
MOE_INLINE __m512i moe_iq4_table(void) {
    __m128i values = _mm_load_si128((const void *)moe_values_iq4_nl);
    return _mm512_broadcast_i32x4(_mm_xor_si128(values, _mm_set1_epi8(-128)));
}

MOE_INLINE __m512i moe_scale_iq4_xs(__m512i low, __m512i high, const int g) {
    low = _mm512_and_si512(_mm512_srli_epi32(low, 4 * (unsigned)g), _mm512_set1_epi32(15));
    high = g > 2 ? _mm512_srli_epi32(high, 2 * (unsigned)g - 4) : _mm512_slli_epi32(high, 4 - 2 * (unsigned)g);
    return _mm512_sub_epi32(moe_or_and(low, high, _mm512_set1_epi32(0x30)), _mm512_set1_epi32(32));
}

MOE_INLINE void rows_avx512_IQ4_XS(const moe_rows *r, moe_sink *s) {
    const __m512i table = moe_iq4_table();
    __m512i head[4], t[8];
    moe_load_16(r, 0, head); /* d and scales_h, scales_l, 8 bytes of qs */
    __m512i high = _mm512_srli_epi32(head[0], 16);
#pragma GCC unroll 8
    for (int g = 0; g < 8; g++) {
        if (g % 2 == 0) moe_load_32(r, offsetof(block_IQ4_XS, qs) + 16 * (size_t)g, t);
        moe_sink_group(s, g);
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++) {
            __m512i q = t[g % 2 * 4 + j % 4];
            moe_sink_step(s, 8 * g + j, _mm512_permutexvar_epi8(j < 4 ? q : _mm512_srli_epi32(q, 4), table));
        }
        moe_sink_scale(s, g, moe_scale_iq4_xs(head[1], high, g));
    }
    __m512 d = moe_low_half(head[0]);
    moe_sink_finish(s, d, d);
}
MOE_DERIVE_AVX512_256(IQ4_XS, signed8, signed8)
