/* Q2_K on AVX-512. Scale times quant is at most 45: for a panel the scale is multiplied into the weights and
 * the whole block is one group. Two bytes at a time with vpmullw, since neither product carries. */
MOE_INLINE void rows_avx512_Q2_K(const moe_rows *r, moe_sink *s) {
    const __m512i m2 = _mm512_set1_epi8(3), m4 = _mm512_set1_epi8(0x0f);
    const int folded = s->kind.n_groups == 1;
    __m512i scales[4], mins[4], q[8];
    moe_load_16(r, offsetof(block_Q2_K, scales), scales);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        mins[i] = _mm512_and_si512(_mm512_srli_epi32(scales[i], 4), m4);
        scales[i] = _mm512_and_si512(scales[i], m4);
    }
    moe_sink_group(s, 0);
#pragma GCC unroll 64
    for (int step = 0; step < 64; step++) {
        const int half = step / 32, pair = step % 32 / 8 * 2, j = step % 8, g = step / 4;
        if (step % 32 == 0) moe_load_32(r, offsetof(block_Q2_K, qs) + 32 * (size_t)half, q);
        if (step % 4 == 0 && !folded) moe_sink_group(s, g);
        __m512i w = _mm512_and_si512(pair ? _mm512_srli_epi32(q[j], (unsigned)pair) : q[j], m2);
        moe_sink_step(s, step, folded ? _mm512_mullo_epi16(w, moe_byte_twice(scales[g / 4], g % 4)) : w);
        if (step % 4 == 3 && !folded) moe_sink_scale(s, g, moe_byte(scales[g / 4], g % 4));
    }
    if (folded) moe_sink_scale(s, 0, m2);
#pragma GCC unroll 8
    for (int k = 0; k < 8; k++) moe_sink_mins(s, k, moe_byte_pair(mins[k / 2], k % 2 * 2));
    __m512i d = moe_load_4(r, offsetof(block_Q2_K, d));
    moe_sink_finish(s, moe_low_half(d), moe_high_half(d));
}
MOE_DERIVE_AVX512_256(Q2_K, min16, folded_min16)
