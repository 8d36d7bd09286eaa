/* Q5_K on AVX-512: Q4_K with a fifth bit from qh. */

/* bit `bit` of each byte of qh, as bit 4 */
MOE_INLINE __m512i moe_fifth_bit(__m512i qh, const int bit) {
    return bit > 4 ? _mm512_srli_epi32(qh, (unsigned)bit - 4) : _mm512_slli_epi32(qh, 4 - (unsigned)bit);
}

MOE_INLINE void rows_avx512_Q5_K(const moe_rows *r, moe_sink *s) {
    const __m512i m4 = _mm512_set1_epi8(0x0f), m5 = _mm512_set1_epi8(0x10);
    moe_head_k4 head = moe_load_head_k4(r);
    __m512i high[8];
    moe_load_32(r, offsetof(block_Q5_K, qh), high);
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
        __m512i t[8];
        moe_load_32(r, offsetof(block_Q5_K, qs) + 32 * (size_t)c, t);
#pragma GCC unroll 2
        for (int h = 0; h < 2; h++) {
            const int g = 2 * c + h;
            moe_sink_group(s, g);
#pragma GCC unroll 8
            for (int j = 0; j < 8; j++) {
                __m512i low = _mm512_and_si512(h ? _mm512_srli_epi32(t[j], 4) : t[j], m4);
                moe_sink_step(s, 8 * g + j, moe_or_and(low, moe_fifth_bit(high[j], g), m5));
            }
            moe_sink_scale(s, g, moe_byte(head.sc[g / 4], g % 4));
        }
    }
    moe_finish_k4(s, &head);
}

MOE_INLINE moe_sums dots_avx512_Q5_K(const moe_rows *r, const block_x_q8_K *b) {
    return moe_dots_k4(r, b, offsetof(block_Q5_K, qs), offsetof(block_Q5_K, qh));
}
MOE_DERIVE_AVX512_DOT(Q5_K, min8, min8, moe_dot_streams)
