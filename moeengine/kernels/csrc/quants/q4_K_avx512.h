/* Q4_K and Q5_K on AVX-512. The 16-byte head (d, dmin, 12 bytes of scales) becomes four vectors; the scales of 16
 * rows are then unpacked with the operations that moe_unpack_scales_k4 uses for one. */
typedef struct moe_head_k4 {
    __m512i sc[2], mn[2]; /* byte i of vector h: scale, min of group 4*h + i */
    __m512 d, dmin;
} moe_head_k4;

MOE_INLINE moe_head_k4 moe_load_head_k4(const moe_rows *r) {
    const __m512i m6 = _mm512_set1_epi8(0x3f), m4 = _mm512_set1_epi8(0x0f), m2 = _mm512_set1_epi8(0x30);
    __m512i t[4];
    moe_load_16(r, 0, t);
    return (moe_head_k4){
        {_mm512_and_si512(t[1], m6), moe_or_and(_mm512_and_si512(t[3], m4), _mm512_srli_epi32(t[1], 2), m2)},
        {_mm512_and_si512(t[2], m6),
         moe_or_and(_mm512_and_si512(_mm512_srli_epi32(t[3], 4), m4), _mm512_srli_epi32(t[2], 2), m2)},
        moe_low_half(t[0]),
        moe_high_half(t[0])};
}

/* the nibbles of 32 bytes: low = group g, high = group g + 1 */
MOE_INLINE void moe_nibble_groups(moe_sink *s, const int g, const __m512i t[8], const moe_head_k4 *head) {
    const __m512i m4 = _mm512_set1_epi8(0x0f);
    moe_sink_group(s, g);
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++) moe_sink_step(s, 8 * g + j, _mm512_and_si512(t[j], m4));
    moe_sink_scale(s, g, moe_byte(head->sc[g / 4], g % 4));
    moe_sink_group(s, g + 1);
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++) moe_sink_step(s, 8 * g + 8 + j, _mm512_and_si512(_mm512_srli_epi32(t[j], 4), m4));
    moe_sink_scale(s, g + 1, moe_byte(head->sc[g / 4], g % 4 + 1));
}

MOE_INLINE void moe_finish_k4(moe_sink *s, const moe_head_k4 *head) {
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++) moe_sink_mins(s, k, moe_byte_pair(head->mn[k / 2], k % 2 * 2));
    moe_sink_finish(s, head->d, head->dmin);
}

MOE_INLINE void rows_avx512_Q4_K(const moe_rows *r, moe_sink *s) {
    moe_head_k4 head = moe_load_head_k4(r);
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
        __m512i t[8];
        moe_load_32(r, offsetof(block_Q4_K, qs) + 32 * (size_t)c, t);
        moe_nibble_groups(s, 2 * c, t, &head);
    }
    moe_finish_k4(s, &head);
}
MOE_DERIVE_AVX512_256(Q4_K, min8, min8)
