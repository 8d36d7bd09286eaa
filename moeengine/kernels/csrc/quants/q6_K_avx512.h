/* Q6_K on AVX-512: 0..63 unsigned, offset 32; the int8 scales of 16 rows are four vectors. */

/* the high bits of quarter q (0..3) of 128 weights, as bits 4 and 5 */
MOE_INLINE __m512i moe_high_bits_q6(__m512i qh, const int q) {
    return q == 0 ? _mm512_slli_epi32(qh, 4) : q == 1 ? _mm512_slli_epi32(qh, 2) : q == 2 ? qh : _mm512_srli_epi32(qh, 2);
}

/* 32 weights, two groups: quarter q of the half `half` of the block; ql: the bytes their low bits are in */
MOE_INLINE void moe_q6_quarter(moe_sink *s, const int half, const int q, const __m512i ql[8], const __m512i qh[8],
                               const __m512i sc[4]) {
    const __m512i m4 = _mm512_set1_epi8(0x0f), m2 = _mm512_set1_epi8(0x30);
    const int g = 8 * half + 2 * q;
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++) {
        if (j % 4 == 0) moe_sink_group(s, g + j / 4);
        __m512i low = _mm512_and_si512(q / 2 ? _mm512_srli_epi32(ql[j], 4) : ql[j], m4);
        moe_sink_step(s, 4 * g + j, moe_or_and(low, moe_high_bits_q6(qh[j], q), m2));
        if (j % 4 == 3) moe_sink_scale(s, g + j / 4, moe_signed_byte(sc[g / 4], g % 4 + j / 4));
    }
}

MOE_INLINE void rows_avx512_Q6_K(const moe_rows *r, moe_sink *s) {
    __m512i ql[2][8], qh[8], sc[4];
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) {
        moe_load_32(r, offsetof(block_Q6_K, ql) + 64 * (size_t)half, ql[0]);
        moe_load_32(r, offsetof(block_Q6_K, ql) + 64 * (size_t)half + 32, ql[1]);
        moe_keep_order();
        moe_load_32(r, offsetof(block_Q6_K, qh) + 32 * (size_t)half, qh);
        if (half == 0) moe_load_16(r, offsetof(block_Q6_K, scales), sc);
#pragma GCC unroll 4
        for (int q = 0; q < 4; q++) moe_q6_quarter(s, half, q, ql[q % 2], qh, sc);
    }
    __m512 d = moe_load_halves(r, offsetof(block_Q6_K, d));
    moe_sink_finish(s, d, d);
}
MOE_DERIVE_AVX512_256(Q6_K, signed16, signed16)
