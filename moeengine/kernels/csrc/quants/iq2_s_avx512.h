/* IQ2_XS and IQ2_S on AVX-512: the code books of 512 and 1024 points as byte tables (iq2_xxs_avx512.h tells
 * the idea). A scale belongs to two indices only, so the four bytes of a step must come from two: they are
 * rearranged to weight p and p + 4 of both (MOE_X_Q8_K_B). */

/* 64 look-ups in a table of 256 * 2^n bytes; bit[i]: bit 7 + i of the indices, i <= n */
MOE_INLINE __m512i moe_lookup_512(const uint8_t *table, __m512i index, const __mmask64 bit[2]) {
    return _mm512_mask_blend_epi8(bit[1], moe_lookup_256(table, index, bit[0]), moe_lookup_256(table + 256, index, bit[0]));
}
MOE_INLINE __m512i moe_lookup_1024(const uint8_t *table, __m512i index, const __mmask64 bit[3]) {
    return _mm512_mask_blend_epi8(bit[2], moe_lookup_512(table, index, bit), moe_lookup_512(table + 512, index, bit));
}

/* Four indices of 32 weights, two groups: codes and signs of weights 0..3 and 4..7 of each index. */
MOE_INLINE void moe_iq2_two_groups(moe_sink *s, const int g, __m512i codes[2], __m512i signs[2], __m512i sc) {
    const __m512i low = _mm512_set1_epi32(0xffff);
    __m512i a[2], b[2], first[2], second[2];
    moe_iq2_pairs(codes[0], signs[0], a);
    moe_iq2_pairs(codes[1], signs[1], b);
#pragma GCC unroll 2
    for (int k = 0; k < 2; k++) {
        first[k] = moe_select(low, a[k], _mm512_slli_epi32(b[k], 16));
        second[k] = moe_select(low, _mm512_srli_epi32(a[k], 16), b[k]);
    }
    moe_sink_group(s, g);
    moe_iq2_steps(s, 4 * g, first);
    moe_sink_scale(s, g, moe_odd(_mm512_slli_epi32(sc, 1), 0x1e));
    moe_sink_group(s, g + 1);
    moe_iq2_steps(s, 4 * g + 4, second);
    moe_sink_scale(s, g + 1, moe_odd(_mm512_srli_epi32(sc, 3), 0x1e));
}

MOE_INLINE void rows_avx512_IQ2_XS(const moe_rows *r, moe_sink *s) {
    __m512i sc[4], t[8];
#pragma GCC unroll 8
    for (int g = 0; g < 8; g++) {
        if (g % 4 == 0) moe_load_32(r, offsetof(block_IQ2_XS, qs) + 8 * (size_t)g, t);
        if (g == 0) moe_load_16(r, sizeof(block_IQ2_XS) - 16, sc); /* the last 8 bytes */
        const __m512i *words = t + g % 4 * 2;
        __m512i index = moe_every_other(words[0], words[1], 0), high = moe_every_other(words[0], words[1], 1);
        __mmask64 bit[2] = {_mm512_movepi8_mask(index), _mm512_test_epi8_mask(high, _mm512_set1_epi8(1))};
        __m512i codes[2] = {moe_lookup_512(moe_codes_iq2_xs[0], index, bit), moe_lookup_512(moe_codes_iq2_xs[1], index, bit)};
        __m512i signs[2] = {moe_move_bits(high, MOE_BIT_ROWS(8, 16, 0, 0, 2, 4, 0, 0)),
                            moe_move_bits(high, MOE_BIT_ROWS(128, 254, 0, 0, 32, 64, 0, 0))};
        moe_iq2_two_groups(s, 2 * g, codes, signs, moe_byte(sc[2 + g / 4], g % 4));
    }
    __m512 d = moe_load_halves(r, offsetof(block_IQ2_XS, d));
    moe_sink_finish(s, _mm512_mul_ps(d, _mm512_set1_ps(0.125f)), d);
}
MOE_DERIVE_AVX512_256(IQ2_XS, signed16_planes, signed16_planes)

MOE_INLINE void rows_avx512_IQ2_S(const moe_rows *r, moe_sink *s) {
    __m512i tail[4], low[8], sign[8]; /* tail: two dwords of qh, two of scales */
    moe_load_32(r, offsetof(block_IQ2_S, qs), low);
    moe_load_32(r, offsetof(block_IQ2_S, signs), sign);
    moe_load_16(r, offsetof(block_IQ2_S, qh), tail);
#pragma GCC unroll 8
    for (int g = 0; g < 8; g++) {
        __m512i index = low[g], high = moe_byte_everywhere(tail[g / 4], g % 4);
        __mmask64 bit[3] = {_mm512_movepi8_mask(index), _mm512_test_epi8_mask(high, _mm512_set1_epi32(0x40100401)),
                            _mm512_test_epi8_mask(high, _mm512_set1_epi32((int)0x80200802))};
        __m512i codes[2] = {moe_lookup_1024(moe_codes_iq2_s[0], index, bit), moe_lookup_1024(moe_codes_iq2_s[1], index, bit)};
        __m512i signs[2] = {moe_move_bits(sign[g], MOE_BIT_ROWS(4, 8, 0, 0, 1, 2, 0, 0)),
                            moe_move_bits(sign[g], MOE_BIT_ROWS(64, 128, 0, 0, 16, 32, 0, 0))};
        moe_iq2_two_groups(s, 2 * g, codes, signs, moe_byte(tail[2 + g / 4], g % 4));
    }
    __m512 d = moe_load_halves(r, offsetof(block_IQ2_S, d));
    moe_sink_finish(s, _mm512_mul_ps(d, _mm512_set1_ps(0.125f)), d);
}
MOE_DERIVE_AVX512_256(IQ2_S, signed16_planes, signed16_planes)
