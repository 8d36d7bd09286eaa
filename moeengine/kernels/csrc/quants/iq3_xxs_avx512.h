/* IQ3_XXS and IQ3_S on AVX-512: a grid point is 4 of 8 magnitudes, so codes are 3 bits and two of them a byte
 * (iq2_xxs_avx512.h tells the idea). The sign of a weight takes the place of a bit of the other code. With the even
 * indices of a group in one vector and the odd ones in another, steps come in MOE_X_Q8_K_A. */

/* Steps step .. step + 3 of four indices a lane: codes 0, 1 and codes 2, 3, and signs in the bits that
 * tools/generate_codes.py names (IQ3_BITS). */
MOE_INLINE void moe_iq3_steps(moe_sink *s, const int step, const __m512i codes[2], __m512i signs,
                              const uint8_t weights[4][64]) {
    const char sign_bit[4] = {0x08, 0x01, 0x10, 0x02};
#pragma GCC unroll 4
    for (int p = 0; p < 4; p++) {
        __m512i index = moe_select(_mm512_set1_epi8(sign_bit[p]), signs, codes[p / 2]);
        moe_sink_step(s, step + p, _mm512_permutexvar_epi8(index, _mm512_load_si512(weights[p])));
    }
}

/* where moe_iq3_steps wants the signs of weights 0..3; of 4..7, the eighth being the parity of `eighth` */
#define MOE_IQ3_SIGNS_EVEN MOE_BIT_ROWS(2, 8, 0, 1, 4, 0, 0, 0)
#define MOE_IQ3_SIGNS_ODD(eighth) MOE_BIT_ROWS(32, eighth, 0, 16, 64, 0, 0, 0)

MOE_INLINE void rows_avx512_IQ3_XXS(const moe_rows *r, moe_sink *s) {
    __m512i t[8], words[8];
#pragma GCC unroll 8
    for (int g = 0; g < 8; g++) {
        if (g % 4 == 0) moe_load_32(r, offsetof(block_IQ3_XXS, qs) + 8 * (size_t)g, t);
        if (g == 0) moe_load_32(r, offsetof(block_IQ3_XXS, scales), words);
        __m512i signs = moe_spread_7(words[g]);
        moe_sink_group(s, g);
#pragma GCC unroll 2
        for (int odd = 0; odd < 2; odd++) {
            __m512i index = moe_every_other(t[g % 4 * 2], t[g % 4 * 2 + 1], odd);
            __mmask64 upper = _mm512_movepi8_mask(index);
            __m512i codes[2] = {moe_lookup_256(moe_codes_iq3_xxs[0], index, upper),
                                moe_lookup_256(moe_codes_iq3_xxs[1], index, upper)};
            moe_iq3_steps(s, 8 * g + 4 * odd, codes,
                          moe_move_bits(signs, odd ? MOE_IQ3_SIGNS_ODD(127) : MOE_IQ3_SIGNS_EVEN), moe_iq3_xxs_weights);
        }
        moe_sink_scale(s, g, moe_odd(_mm512_srli_epi32(words[g], 27), 0x1e));
    }
    __m512 d = moe_load_halves(r, offsetof(block_IQ3_XXS, d));
    moe_sink_finish(s, _mm512_mul_ps(d, _mm512_set1_ps(0.25f)), d);
}
MOE_DERIVE_AVX512_256(IQ3_XXS, signed8_planes, signed8_planes)

MOE_INLINE void rows_avx512_IQ3_S(const moe_rows *r, moe_sink *s) {
    __m512i t[8], sign[8], qh[4], tail[4];
#pragma GCC unroll 8
    for (int g = 0; g < 8; g++) {
        if (g % 4 == 0) moe_load_32(r, offsetof(block_IQ3_S, qs) + 8 * (size_t)g, t);
        if (g == 0) {
            moe_load_16(r, offsetof(block_IQ3_S, qh), qh);  /* 8 bytes, and 8 of signs */
            moe_load_32(r, offsetof(block_IQ3_S, signs), sign);
            moe_load_16(r, sizeof(block_IQ3_S) - 16, tail); /* the last 4 bytes are the scales */
        }
        __m512i high = moe_byte_everywhere(qh[g / 4], g % 4);
        moe_sink_group(s, g);
#pragma GCC unroll 2
        for (int odd = 0; odd < 2; odd++) {
            __m512i index = moe_every_other(t[g % 4 * 2], t[g % 4 * 2 + 1], odd);
            __mmask64 bit[2] = {_mm512_movepi8_mask(index),
                                _mm512_test_epi8_mask(high, _mm512_set1_epi32(odd ? (int)0x80200802 : 0x40100401))};
            __m512i codes[2] = {moe_lookup_512(moe_codes_iq3_s[0], index, bit),
                                moe_lookup_512(moe_codes_iq3_s[1], index, bit)};
            moe_iq3_steps(s, 8 * g + 4 * odd, codes,
                          moe_move_bits(sign[g], odd ? MOE_IQ3_SIGNS_ODD(128) : MOE_IQ3_SIGNS_EVEN), moe_iq3_s_weights);
        }
        moe_sink_scale(s, g, moe_odd(g ? _mm512_srli_epi32(tail[3], 4 * (unsigned)g - 1) : _mm512_slli_epi32(tail[3], 1), 0x1e));
    }
    __m512 d = moe_load_halves(r, offsetof(block_IQ3_S, d));
    moe_sink_finish(s, d, d);
}
MOE_DERIVE_AVX512_256(IQ3_S, signed8_planes, signed8_planes)
