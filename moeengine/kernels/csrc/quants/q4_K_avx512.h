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
/* sum of min * activations of 16 rows */
MOE_INLINE __m512i moe_min_sums_k4(const moe_head_k4 *head, const block_x_q8_K *b) {
    __m512i s = _mm512_setzero_si512();
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++)
        s = _mm512_dpwssd_epi32(s, moe_byte_pair(head->mn[k / 2], k % 2 * 2), moe_broadcast_4(b->sum32 + 2 * k));
    return s;
}

/* ---- one activation row ---- */

/* Activations in the order of 64 bytes of nibbles: x[0], x[1] for the low and high ones of the first 64 bytes, x[2],
 * x[3] of the others */
MOE_INLINE void moe_order_nibbles(const block_x_q8_K *b, __m512i x[4]) {
#pragma GCC unroll 2
    for (int h = 0; h < 2; h++) {
        __m512i lo = _mm512_load_si512(b->q + 128 * h), hi = _mm512_load_si512(b->q + 128 * h + 64);
        x[2 * h] = _mm512_shuffle_i64x2(lo, hi, 0x44);
        x[2 * h + 1] = _mm512_shuffle_i64x2(lo, hi, 0xee);
    }
}

/* the four scales at p, as moe_dot_two has their groups */
MOE_INLINE __m512i moe_spread_scales(const uint32_t *p) {
    const __m512i index = _mm512_set_epi64(0x0003000300030003, 0x0002000200020002, 0x0003000300030003, 0x0002000200020002,
                                           0x0001000100010001, 0, 0x0001000100010001, 0);
    return _mm512_maskz_shuffle_epi8(0x5555555555555555, _mm512_set1_epi32((int)*p), index);
}

/* bit `low` of the bytes of the lower half of v, bit `high` of the others, as bit 4 */
MOE_INLINE __m512i moe_bit_4(__m512i v, const int low, const int high) {
    const long long l = (long long)MOE_BIT_ROWS(0, 0, 0, 0, 1 << low, 0, 0, 0), h = (long long)MOE_BIT_ROWS(0, 0, 0, 0, 1 << high, 0, 0, 0);
    return _mm512_gf2p8affine_epi64_epi8(v, _mm512_set_epi64(h, h, h, h, l, l, l, l), 0);
}

/* Q4_K and Q5_K: offsets of qs and, where there are fifth bits, of qh, else 0. A sum of four is at most
 * 31 * 128 * 4 < 2^15. */
MOE_INLINE moe_sums moe_dots_k4(const moe_rows *r, const block_x_q8_K *b, const size_t qs, const size_t qh) {
    const __m512i m4 = _mm512_set1_epi8(0x0f), zero[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
    const moe_head_k4 head = moe_load_head_k4(r);
    moe_row_words sc[2];
    __m512i x[4], four[4];
    moe_store_words(&sc[0], head.sc[0]);
    moe_store_words(&sc[1], head.sc[1]);
    moe_order_nibbles(b, x);
#pragma GCC unroll 4
    for (int q = 0; q < 4; q++) {
        __m512i v[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            __m512i bits = qh ? moe_row_32_twice(r, 4 * q + i, qh) : zero[0];
            v[i] = zero[0];
#pragma GCC unroll 2
            for (int h = 0; h < 2; h++) {
                __m512i w = moe_row_64(r, 4 * q + i, qs + 64 * (size_t)h);
                __m512i lo = _mm512_and_si512(w, m4), hi = moe_high_nibbles(w);
                if (qh) {
                    lo = _mm512_or_si512(lo, moe_bit_4(bits, 4 * h, 4 * h + 2));
                    hi = _mm512_or_si512(hi, moe_bit_4(bits, 4 * h + 1, 4 * h + 3));
                }
                v[i] = _mm512_dpwssd_epi32(v[i], moe_dot_two(lo, hi, x + 2 * h, zero), moe_spread_scales(&sc[h].row[4 * q + i]));
            }
        }
        four[q] = moe_add_four(v);
    }
    return (moe_sums){moe_add_lanes(four), moe_min_sums_k4(&head, b), head.d, head.dmin};
}

MOE_INLINE moe_sums dots_avx512_Q4_K(const moe_rows *r, const block_x_q8_K *b) {
    return moe_dots_k4(r, b, offsetof(block_Q4_K, qs), 0);
}
MOE_DERIVE_AVX512_DOT(Q4_K, min8, min8, moe_dot_streams)
