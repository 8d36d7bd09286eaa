/* Q3_K on AVX-512: 0..7 unsigned, offset 4; 16 six-bit scales of 16 rows are four vectors. */
MOE_INLINE void moe_load_tail_q3_K(const moe_rows *r, __m512i sc[4], __m512 *d) {
    const __m512i m4 = _mm512_set1_epi8(0x0f), m2 = _mm512_set1_epi8(0x30);
    __m512i t[4]; /* the last 16 bytes: two of qs, 12 of scales, d */
    moe_load_16(r, sizeof(block_Q3_K) - 16, t);
    __m512i a = _mm512_shrdi_epi32(t[0], t[1], 16), b = _mm512_shrdi_epi32(t[1], t[2], 16),
            c = _mm512_shrdi_epi32(t[2], t[3], 16);
    sc[0] = moe_or_and(_mm512_and_si512(a, m4), _mm512_slli_epi32(c, 4), m2);
    sc[1] = moe_or_and(_mm512_and_si512(b, m4), _mm512_slli_epi32(c, 2), m2);
    sc[2] = moe_or_and(_mm512_and_si512(_mm512_srli_epi32(a, 4), m4), c, m2);
    sc[3] = moe_or_and(_mm512_and_si512(_mm512_srli_epi32(b, 4), m4), _mm512_srli_epi32(c, 2), m2);
    *d = moe_high_half(t[3]);
}

/* bit `bit` of each byte, as bit 2 */
MOE_INLINE __m512i moe_third_bit(__m512i hmask, const int bit) {
    return bit > 2 ? _mm512_srli_epi32(hmask, (unsigned)bit - 2) : _mm512_slli_epi32(hmask, 2 - (unsigned)bit);
}

MOE_INLINE void rows_avx512_Q3_K(const moe_rows *r, moe_sink *s) {
    const __m512i m2 = _mm512_set1_epi8(3), m3 = _mm512_set1_epi8(4);
    __m512i sc[4], high[8], q[8];
    __m512 d;
    moe_load_32(r, offsetof(block_Q3_K, hmask), high);
    moe_load_tail_q3_K(r, sc, &d);
#pragma GCC unroll 64
    for (int step = 0; step < 64; step++) {
        const int half = step / 32, pair = step % 32 / 8 * 2, j = step % 8, g = step / 4;
        if (step % 32 == 0) moe_load_32(r, offsetof(block_Q3_K, qs) + 32 * (size_t)half, q);
        if (step % 4 == 0) moe_sink_group(s, g);
        __m512i low = _mm512_and_si512(pair ? _mm512_srli_epi32(q[j], (unsigned)pair) : q[j], m2);
        moe_sink_step(s, step, moe_or_and(low, moe_third_bit(high[j], step / 8), m3));
        if (step % 4 == 3)
            moe_sink_scale(s, g, _mm512_sub_epi32(moe_byte(sc[g / 4], g % 4), _mm512_set1_epi32(32)));
    }
    moe_sink_finish(s, d, d);
}
MOE_DERIVE_AVX512_256(Q3_K, offset4, offset4)
