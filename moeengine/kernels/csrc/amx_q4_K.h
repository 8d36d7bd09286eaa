/* AMX: planes of Q4_K and Q5_K. Weights are unsigned and at most 31, so the scale's upper and lower three bits can each
 * be multiplied into two bytes at a time by one vpmullw: no byte's product carries into the next. */

/* the scales of four groups, as moe_head_k4 has them, in two halves */
typedef struct moe_amx_halves {
    __m512i high, low;
} moe_amx_halves;

MOE_INLINE moe_amx_halves moe_amx_scale_halves(__m512i scales) {
    const __m512i seven = _mm512_set1_epi8(7);
    return (moe_amx_halves){_mm512_and_si512(_mm512_srli_epi32(scales, 3), seven), _mm512_and_si512(scales, seven)};
}

/* group g: 8 steps */
MOE_INLINE void moe_amx_scaled_group(moe_planes *p, const int g, const __m512i w[8], const moe_amx_halves *scales) {
    const __m512i high = moe_byte_twice(scales->high, g % 4), low = moe_byte_twice(scales->low, g % 4);
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++) {
        _mm512_store_si512(p->step[0][8 * g + j], _mm512_mullo_epi16(w[j], high));
        _mm512_store_si512(p->step[1][8 * g + j], _mm512_mullo_epi16(w[j], low));
    }
}

MOE_INLINE void moe_amx_planes_Q4_K(const moe_rows *r, moe_sink *s, moe_planes *p) {
    const __m512i m4 = _mm512_set1_epi8(0x0f);
    moe_head_k4 head = moe_load_head_k4(r);
    const moe_amx_halves scales[2] = {moe_amx_scale_halves(head.sc[0]), moe_amx_scale_halves(head.sc[1])};
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
        __m512i t[8], w[8];
        moe_load_32(r, offsetof(block_Q4_K, qs) + 32 * (size_t)c, t);
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++) w[j] = _mm512_and_si512(t[j], m4);
        moe_amx_scaled_group(p, 2 * c, w, &scales[c / 2]);
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++) w[j] = _mm512_and_si512(_mm512_srli_epi32(t[j], 4), m4);
        moe_amx_scaled_group(p, 2 * c + 1, w, &scales[c / 2]);
    }
    moe_finish_k4(s, &head);
}

MOE_INLINE void moe_amx_planes_Q5_K(const moe_rows *r, moe_sink *s, moe_planes *p) {
    const __m512i m4 = _mm512_set1_epi8(0x0f), m5 = _mm512_set1_epi8(0x10);
    moe_head_k4 head = moe_load_head_k4(r);
    const moe_amx_halves scales[2] = {moe_amx_scale_halves(head.sc[0]), moe_amx_scale_halves(head.sc[1])};
    __m512i fifth[8];
    moe_load_32(r, offsetof(block_Q5_K, qh), fifth);
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
        __m512i t[8], w[8];
        moe_load_32(r, offsetof(block_Q5_K, qs) + 32 * (size_t)c, t);
#pragma GCC unroll 2
        for (int h = 0; h < 2; h++) {
#pragma GCC unroll 8
            for (int j = 0; j < 8; j++)
                w[j] = moe_or_and(_mm512_and_si512(h ? _mm512_srli_epi32(t[j], 4) : t[j], m4), moe_fifth_bit(fifth[j], 2 * c + h), m5);
            moe_amx_scaled_group(p, 2 * c + h, w, &scales[c / 2]);
        }
    }
    moe_finish_k4(s, &head);
}
