/* IQ2_XXS on AVX-512: the code book as byte tables in registers.
 *
 * A grid point is 8 magnitudes out of {8, 25, 43}, kept as 8 codes of 2 bits in two tables of a byte a point
 * (codes 0..3 and 4..7): four registers a table; two vpermi2b and a blend on bit 7 of the index look up 64.
 * From codes to weights: one vpermb for weight p of every index, the *code byte as index* into a table of 64
 * weights. vpermb looks at 6 bits, and the table decides which of them count, so a byte carries two codes
 * with their two signs and nothing is shifted or masked to get one of them out.
 * Steps come in MOE_X_Q8_K_A: byte i of step 8*g + p is weight p of index i of group g.
 *
 * Signs: vpmultishiftqb puts the 7 bits of an index into a byte, vgf2p8affineqb moves each to where the
 * weight tables want it; the eighth sign, the parity of the seven, is one more row of its bit matrix. */

MOE_INLINE __m512i moe_move_bits(__m512i v, const uint64_t rows) {
    return _mm512_gf2p8affine_epi64_epi8(v, _mm512_set1_epi64((long long)rows), 0);
}

/* four fields of 7 bits of each dword -> its four bytes; bit 7 is rubbish */
MOE_INLINE __m512i moe_spread_7(__m512i v) {
    return _mm512_multishift_epi64_epi8(_mm512_set1_epi64(0x352e2720150e0700), v);
}

/* 64 look-ups in a table of 256 bytes; upper: bit 7 of the indices */
MOE_INLINE __m512i moe_lookup_256(const uint8_t *table, __m512i index, __mmask64 upper) {
    __m512i lo = _mm512_permutex2var_epi8(_mm512_load_si512(table), index, _mm512_load_si512(table + 64));
    __m512i hi = _mm512_permutex2var_epi8(_mm512_load_si512(table + 128), index, _mm512_load_si512(table + 192));
    return _mm512_mask_blend_epi8(upper, lo, hi);
}

/* Four codes and their signs in two bytes that index moe_iq2_weights (layout: tools/generate_codes.py). `signs` has
 * those of codes 0, 1 in bits 4, 5 and those of codes 2, 3 in bits 0, 1. */
MOE_INLINE void moe_iq2_pairs(__m512i codes, __m512i signs, __m512i pair[2]) {
    pair[0] = moe_select(_mm512_set1_epi8(0x30), signs, codes);
    pair[1] = moe_select(_mm512_set1_epi8(0x03), signs, _mm512_srli_epi32(codes, 2));
}

/* steps step .. step + 3 from two index bytes a lane */
MOE_INLINE void moe_iq2_steps(moe_sink *s, const int step, const __m512i pair[2]) {
#pragma GCC unroll 4
    for (int p = 0; p < 4; p++)
        moe_sink_step(s, step + p, _mm512_permutexvar_epi8(pair[p / 2], _mm512_load_si512(moe_iq2_weights[p])));
}

/* 2 * field + 1, the field being the bits of `mask` / 2 after a shift by one less */
MOE_INLINE __m512i moe_odd(__m512i v, const int mask) {
    return _mm512_ternarylogic_epi32(v, _mm512_set1_epi32(mask), _mm512_set1_epi32(1), 0xea); /* (v & mask) | 1 */
}

/* Index bytes of the 8 weights of four indices a lane: pair[p / 2] for weight p. word: their signs. */
MOE_INLINE void moe_iq2_xxs_pairs(__m512i index, __m512i word, __m512i pair[4]) {
    __mmask64 upper = _mm512_movepi8_mask(index);
    __m512i signs = moe_spread_7(word);
    moe_iq2_pairs(moe_lookup_256(moe_codes_iq2_xxs[0], index, upper),
                  moe_move_bits(signs, MOE_BIT_ROWS(4, 8, 0, 0, 1, 2, 0, 0)), pair);
    moe_iq2_pairs(moe_lookup_256(moe_codes_iq2_xxs[1], index, upper),
                  moe_move_bits(signs, MOE_BIT_ROWS(64, 127, 0, 0, 16, 32, 0, 0)), pair + 2);
}

MOE_INLINE __m512i moe_scale_iq2_xxs(__m512i word) { return moe_odd(_mm512_srli_epi32(word, 27), 0x1e); }

/* a group of 32: four indices and the word with signs and scale */
MOE_INLINE void moe_iq2_xxs_group(moe_sink *s, const int g, __m512i index, __m512i word) {
    __m512i pair[4];
    moe_sink_group(s, g);
    moe_iq2_xxs_pairs(index, word, pair);
    moe_iq2_steps(s, 8 * g, pair);
    moe_iq2_steps(s, 8 * g + 4, pair + 2);
    moe_sink_scale(s, g, moe_scale_iq2_xxs(word));
}

MOE_INLINE void rows_avx512_IQ2_XXS(const moe_rows *r, moe_sink *s) {
#pragma GCC unroll 2
    for (int h = 0; h < 2; h++) {
        __m512i t[8];
        moe_load_32(r, offsetof(block_IQ2_XXS, qs) + 32 * (size_t)h, t);
#pragma GCC unroll 4
        for (int g = 0; g < 4; g++) moe_iq2_xxs_group(s, 4 * h + g, t[2 * g], t[2 * g + 1]);
    }
    __m512 d = moe_load_halves(r, offsetof(block_IQ2_XXS, d));
    moe_sink_finish(s, _mm512_mul_ps(d, _mm512_set1_ps(0.125f)), d);
}

/* ---- one activation row: two rows of weights at a time. A register holds in its 128-bit lane L groups 2*L and 2*L + 1
 * of the first row, then those of the second. ---- */

/* Activations in that order: x[p] has those of weight p; start: -64 * sum of every group */
MOE_INLINE void moe_order_iq2_xxs(const block_x_q8_K *b, __m512i x[8], __m512i *start) {
    const __m512i first = _mm512_set_epi32(28, 20, 28, 20, 12, 4, 12, 4, 24, 16, 24, 16, 8, 0, 8, 0);
    const __m512i q0 = _mm512_load_si512(b->q), q1 = _mm512_load_si512(b->q + 64), q2 = _mm512_load_si512(b->q + 128),
                  q3 = _mm512_load_si512(b->q + 192);
#pragma GCC unroll 4
    for (int p = 0; p < 4; p++) {
        const __m512i index = _mm512_add_epi32(first, _mm512_set1_epi32(p));
        __m512i lo = _mm512_permutex2var_epi32(q0, index, q1), hi = _mm512_permutex2var_epi32(q2, index, q3);
        x[p] = _mm512_shuffle_i64x2(lo, hi, 0x44);
        x[p + 4] = _mm512_shuffle_i64x2(lo, hi, 0xee);
    }
    __m256i sums = _mm256_mullo_epi32(_mm256_cvtepi16_epi32(_mm_load_si128((const void *)b->sum32)), _mm256_set1_epi32(-64));
    *start = _mm512_permutexvar_epi64(_mm512_set_epi64(3, 3, 2, 2, 1, 1, 0, 0), _mm512_zextsi256_si512(sums));
}

/* scaled sums of rows i and i + 1 */
MOE_INLINE __m512i moe_dot_iq2_xxs(const moe_rows *r, const int i, const __m512i x[8], __m512i sum) {
    __m512 a = _mm512_castsi512_ps(moe_row_64(r, i, offsetof(block_IQ2_XXS, qs)));
    __m512 b = _mm512_castsi512_ps(moe_row_64(r, i + 1, offsetof(block_IQ2_XXS, qs)));
    __m512i word = _mm512_castps_si512(_mm512_shuffle_ps(a, b, 0xdd)), pair[4];
    moe_iq2_xxs_pairs(_mm512_castps_si512(_mm512_shuffle_ps(a, b, 0x88)), word, pair);
#pragma GCC unroll 8
    for (int p = 0; p < 8; p++) {
        __m512i w = _mm512_permutexvar_epi8(pair[p / 2], _mm512_load_si512(moe_iq2_weights[p % 4]));
        sum = _mm512_dpbusd_epi32(sum, w, x[p]);
    }
    return _mm512_mullo_epi32(sum, moe_scale_iq2_xxs(word));
}

MOE_INLINE moe_sums dots_avx512_IQ2_XXS(const moe_rows *r, const block_x_q8_K *b) {
    __m512i x[8], start, four[4];
    moe_order_iq2_xxs(b, x, &start);
#pragma GCC unroll 4
    for (int q = 0; q < 4; q++) {
        __m512 s0 = _mm512_castsi512_ps(moe_dot_iq2_xxs(r, 4 * q, x, start));
        __m512 s1 = _mm512_castsi512_ps(moe_dot_iq2_xxs(r, 4 * q + 2, x, start));
        four[q] = _mm512_add_epi32(_mm512_castps_si512(_mm512_shuffle_ps(s0, s1, 0x88)),
                                   _mm512_castps_si512(_mm512_shuffle_ps(s0, s1, 0xdd)));
    }
    __m512 d = moe_load_halves(r, offsetof(block_IQ2_XXS, d));
    return (moe_sums){moe_add_lanes(four), start, _mm512_mul_ps(d, _mm512_set1_ps(0.125f)), d};
}
MOE_DERIVE_AVX512_DOT(IQ2_XXS, signed8_planes, signed8_planes, moe_dot_neighbours)
