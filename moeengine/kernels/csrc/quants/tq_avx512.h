/* TQ1_0 and TQ2_0 on AVX-512: digits 0..2, offset 1, no scales: a block is one group. */

/* digit p of each byte that holds four of 2 bits */
MOE_INLINE __m512i moe_digit(__m512i codes, const int p) {
    return _mm512_and_si512(p ? _mm512_srli_epi32(codes, 2 * (unsigned)p) : codes, _mm512_set1_epi8(3));
}

/* what the sums of rows start from: minus the activations that they are multiplied with */
MOE_INLINE __m512i moe_ternary_start(const __m512i *x, const int n) {
    __m512i sum = _mm512_setzero_si512();
#pragma GCC unroll 8
    for (int k = 0; k < n; k++) sum = _mm512_dpbusd_epi32(sum, _mm512_set1_epi8(1), x[k]);
    return _mm512_sub_epi32(_mm512_setzero_si512(), sum);
}

/* ---- TQ2_0 ---- */

MOE_INLINE void rows_avx512_TQ2_0(const moe_rows *r, moe_sink *s) {
    moe_sink_group(s, 0);
#pragma GCC unroll 2
    for (int h = 0; h < 2; h++) {
        __m512i t[8];
        moe_load_32(r, offsetof(block_TQ2_0, qs) + 32 * (size_t)h, t);
#pragma GCC unroll 32
        for (int step = 0; step < 32; step++) moe_sink_step(s, 32 * h + step, moe_digit(t[step % 8], step / 8));
    }
    moe_sink_scale(s, 0, s->isum);
    __m512 d = moe_load_halves(r, offsetof(block_TQ2_0, d));
    moe_sink_finish(s, d, d);
}

MOE_INLINE moe_sums dots_avx512_TQ2_0(const moe_rows *r, const block_x_q8_K *b) {
    __m512i x[4], four[4];
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++) {
        __m256i first = _mm256_load_si256((const void *)(b->q + 32 * k));
        x[k] = _mm512_inserti64x4(_mm512_castsi256_si512(first), _mm256_load_si256((const void *)(b->q + 128 + 32 * k)), 1);
    }
    const __m512i start = moe_ternary_start(x, 4);
#pragma GCC unroll 4
    for (int q = 0; q < 4; q++) {
        __m512i v[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            __m512i codes = moe_row_64(r, 4 * q + i, offsetof(block_TQ2_0, qs));
            v[i] = start;
#pragma GCC unroll 4
            for (int p = 0; p < 4; p++) v[i] = _mm512_dpbusd_epi32(v[i], moe_digit(codes, p), x[p]);
        }
        four[q] = moe_add_four(v);
    }
    __m512 d = moe_load_halves(r, offsetof(block_TQ2_0, d));
    return (moe_sums){moe_add_lanes(four), start, d, d};
}
MOE_DERIVE_AVX512_DOT(TQ2_0, ternary, ternary, moe_dot_streams)

/* ---- TQ1_0: the five digits of a byte are looked up: four as in TQ2_0, and the fifth ---- */

typedef struct moe_trit_codes {
    __m512i four, fifth;
} moe_trit_codes;

MOE_INLINE moe_trit_codes moe_look_up_trits(__m512i v) {
    __mmask64 upper = _mm512_movepi8_mask(v);
    return (moe_trit_codes){moe_lookup_256(moe_codes_tq1_0[0], v, upper), moe_lookup_256(moe_codes_tq1_0[1], v, upper)};
}

/* dwords of bytes with five digits: digit n of dword j is step first + n_dwords * n + j */
MOE_INLINE void moe_trit_steps(moe_sink *s, const int first, const int n_dwords, const __m512i *t) {
#pragma GCC unroll 8
    for (int j = 0; j < n_dwords; j++) {
        moe_trit_codes codes = moe_look_up_trits(t[j]);
#pragma GCC unroll 4
        for (int n = 0; n < 4; n++) moe_sink_step(s, first + n_dwords * n + j, moe_digit(codes.four, n));
        moe_sink_step(s, first + n_dwords * 4 + j, codes.fifth);
    }
}

MOE_INLINE void rows_avx512_TQ1_0(const moe_rows *r, moe_sink *s) {
    __m512i t[8], tail[4]; /* tail: the last 16 bytes, of which qh and d are 6 */
    moe_sink_group(s, 0);
    moe_load_32(r, offsetof(block_TQ1_0, qs), t);
    moe_trit_steps(s, 0, 8, t);
    moe_load_16(r, offsetof(block_TQ1_0, qs) + 32, t);
    moe_trit_steps(s, 40, 4, t);
    moe_load_16(r, sizeof(block_TQ1_0) - 16, tail);
    moe_trit_codes codes = moe_look_up_trits(_mm512_shrdi_epi32(tail[2], tail[3], 16));
#pragma GCC unroll 4
    for (int n = 0; n < 4; n++) moe_sink_step(s, 60 + n, moe_digit(codes.four, n));
    moe_sink_scale(s, 0, s->isum);
    __m512 d = moe_high_half(tail[3]);
    moe_sink_finish(s, d, d);
}

/* activations in the order of digit n of qs and qh; behind them, zeros */
MOE_INLINE __m512i moe_order_trits(const block_x_q8_K *b, const int n) {
    __m512i x = _mm512_zextsi256_si512(_mm256_load_si256((const void *)(b->q + 32 * n)));
    x = _mm512_inserti32x4(x, _mm_load_si128((const void *)(b->q + 160 + 16 * n)), 2);
    return n < 4 ? _mm512_inserti32x4(x, _mm_cvtsi32_si128((int)moe_load_u32(b->q + 240 + 4 * n)), 3) : x;
}

MOE_INLINE moe_sums dots_avx512_TQ1_0(const moe_rows *r, const block_x_q8_K *b) {
    const __mmask64 bytes = ((__mmask64)1 << offsetof(block_TQ1_0, d)) - 1;
    __m512i x[5], four[4];
#pragma GCC unroll 5
    for (int n = 0; n < 5; n++) x[n] = moe_order_trits(b, n);
    const __m512i start = moe_ternary_start(x, 5);
#pragma GCC unroll 4
    for (int q = 0; q < 4; q++) {
        __m512i v[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            moe_trit_codes codes = moe_look_up_trits(_mm512_maskz_loadu_epi8(bytes, moe_row(r, 4 * q + i)));
            v[i] = _mm512_dpbusd_epi32(start, codes.fifth, x[4]);
#pragma GCC unroll 4
            for (int n = 0; n < 4; n++) v[i] = _mm512_dpbusd_epi32(v[i], moe_digit(codes.four, n), x[n]);
        }
        four[q] = moe_add_four(v);
    }
    __m512 d = moe_load_halves(r, offsetof(block_TQ1_0, d));
    return (moe_sums){moe_add_lanes(four), start, d, d};
}
MOE_DERIVE_AVX512_DOT(TQ1_0, ternary, ternary, moe_dot_neighbours)
