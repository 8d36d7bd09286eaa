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

/* ---- one activation row ---- */

/* the high bits of quarter q in the lower half of qh and of quarter q + 1 in the other, as bits 4 and 5 */
MOE_INLINE __m512i moe_high_bits_q6_twice(__m512i qh, const int q) {
    const long long l = (long long)MOE_BIT_ROWS(0, 0, 0, 0, 1 << 2 * q, 2 << 2 * q, 0, 0);
    const long long h = (long long)MOE_BIT_ROWS(0, 0, 0, 0, 4 << 2 * q, 8 << 2 * q, 0, 0);
    return _mm512_gf2p8affine_epi64_epi8(qh, _mm512_set_epi64(h, h, h, h, l, l, l, l), 0);
}

/* 16 scales of a row, 16 bits each, as moe_dot_two has the groups of half `half` of the block */
MOE_INLINE __m512i moe_spread_scales_q6(__m512i sc, const int half) {
    const __m512i index = _mm512_set_epi64(0x0007000700070007, 0x0003000300030003, 0x0006000600060006, 0x0002000200020002,
                                           0x0005000500050005, 0x0001000100010001, 0x0004000400040004, 0);
    return _mm512_permutexvar_epi16(_mm512_add_epi16(index, _mm512_set1_epi16((short)(8 * half))), sc);
}

/* Sums start where they would be if all weights were -32: a sum of four is then within 32 * 128 * 4 < 2^15. */
MOE_INLINE moe_sums dots_avx512_Q6_K(const moe_rows *r, const block_x_q8_K *b) {
    const __m512i m4 = _mm512_set1_epi8(0x0f);
    __m512i x[4], start[4], four[4];
    moe_load_activations(b, 32, x, start);
#pragma GCC unroll 4
    for (int q = 0; q < 4; q++) {
        __m512i v[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            const int row = 4 * q + i;
            const __m512i ql[2] = {moe_row_64(r, row, offsetof(block_Q6_K, ql)), moe_row_64(r, row, offsetof(block_Q6_K, ql) + 64)};
            moe_keep_order();
            __m512i sc = _mm512_zextsi256_si512(_mm256_cvtepi8_epi16(moe_row_16(r, offsetof(block_Q6_K, scales), row)));
            v[i] = _mm512_setzero_si512();
#pragma GCC unroll 2
            for (int h = 0; h < 2; h++) {
                __m512i w = ql[h];
                __m512i qh = moe_row_32_twice(r, row, offsetof(block_Q6_K, qh) + 32 * (size_t)h);
                __m512i lo = moe_or_and(moe_high_bits_q6_twice(qh, 0), w, m4);
                __m512i hi = _mm512_or_si512(moe_high_bits_q6_twice(qh, 2), moe_high_nibbles(w));
                v[i] = _mm512_dpwssd_epi32(v[i], moe_dot_two(lo, hi, x + 2 * h, start + 2 * h), moe_spread_scales_q6(sc, h));
            }
        }
        four[q] = moe_add_four(v);
    }
    __m512 d = moe_load_halves(r, offsetof(block_Q6_K, d));
    return (moe_sums){moe_add_lanes(four), start[0], d, d};
}
MOE_DERIVE_AVX512_DOT(Q6_K, signed16, signed16, moe_dot_streams)
