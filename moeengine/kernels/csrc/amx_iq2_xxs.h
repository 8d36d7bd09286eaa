/* AMX: planes of IQ2_XXS out of tables (quants/iq2_xxs_avx512.h tells the idea of the byte tables).
 *
 * A magnitude has a code of 2 bits and its group a scale of 4: together an index of 6 bits, so one vpermb gives the high
 * byte of magnitude * (2 * scale + 1) and one the low byte. The sign then negates both. Where a byte holds four codes, the
 * scale is moved to the bits around the code instead of the code to a fixed place (tools/generate_codes.py, scaled_planes). */

/* steps step .. step + 3: `codes` of four weights of every index; scale[i]: in the bits that layout i wants; signs of the
 * four weights from bit `bit` on */
MOE_INLINE void moe_amx_iq2_steps(moe_planes *p, const int step, __m512i codes, const __m512i scale[3], __m512i signs, const int bit) {
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++) {
        const int layout = k < 3 ? k : 2;
        const __m512i mask = _mm512_set1_epi8((char)(3 << 2 * layout)), zero = _mm512_setzero_si512();
        __m512i index = moe_select(mask, k < 3 ? codes : _mm512_srli_epi32(codes, 2), scale[layout]);
        __m512i high = _mm512_permutexvar_epi8(index, _mm512_load_si512(moe_iq2_high[layout]));
        __m512i low = _mm512_permutexvar_epi8(index, _mm512_load_si512(moe_iq2_low[layout]));
        __mmask64 minus = bit + k == 7 ? _mm512_movepi8_mask(signs) : _mm512_test_epi8_mask(signs, _mm512_set1_epi8((char)(1 << (bit + k))));
        _mm512_store_si512(p->step[0][step + k], _mm512_mask_sub_epi8(high, minus, zero, high));
        _mm512_store_si512(p->step[1][step + k], _mm512_mask_sub_epi8(low, minus, zero, low));
    }
}

/* a group of 32: four indices and the word with signs and scale */
MOE_INLINE void moe_amx_iq2_xxs_group(moe_planes *p, const int g, __m512i index, __m512i word) {
    const __mmask64 upper = _mm512_movepi8_mask(index);
    const __m512i signs = moe_move_bits(moe_spread_7(word), MOE_BIT_ROWS(1, 2, 4, 8, 16, 32, 64, 127));
    const __m512i s = moe_byte_everywhere(_mm512_srli_epi32(word, 28), 0);
    const __m512i scale[3] = {_mm512_slli_epi32(s, 2), moe_move_bits(s, MOE_BIT_ROWS(1, 2, 0, 0, 4, 8, 0, 0)), s};
    moe_amx_iq2_steps(p, 8 * g, moe_lookup_256(moe_codes_iq2_xxs[0], index, upper), scale, signs, 0);
    moe_amx_iq2_steps(p, 8 * g + 4, moe_lookup_256(moe_codes_iq2_xxs[1], index, upper), scale, signs, 4);
}

MOE_INLINE void moe_amx_planes_IQ2_XXS(const moe_rows *r, moe_sink *s, moe_planes *p) {
#pragma GCC unroll 2
    for (int h = 0; h < 2; h++) {
        __m512i t[8];
        moe_load_32(r, offsetof(block_IQ2_XXS, qs) + 32 * (size_t)h, t);
#pragma GCC unroll 4
        for (int g = 0; g < 4; g++) moe_amx_iq2_xxs_group(p, 4 * h + g, t[2 * g], t[2 * g + 1]);
    }
    __m512 d = moe_load_halves(r, offsetof(block_IQ2_XXS, d));
    moe_sink_finish(s, _mm512_mul_ps(d, _mm512_set1_ps(0.125f)), d);
}
