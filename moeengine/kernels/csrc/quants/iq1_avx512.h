/* IQ1_S and IQ1_M on AVX-512. The grid of 2048 points is too large for look-ups in registers, so points are loaded one by
 * one, from a table that holds 8 * (value + 1) = 0, 8 or 16. Indices are put together 32 at a time, in memory.
 *
 * With the shift of a point by an eighth, delta = 1 or -1, a weight is q = 8 * (value + 1) + delta - 8.
 *   IQ1_S: delta - 8 belongs to a group of 32 and is kept like a min. Scale times 8 * (value + 1) is at most 240: for a
 *          panel the scale is multiplied into the weights and the whole block is one group, as in Q2_K.
 *   IQ1_M: a step holds q + 9, which is 8 * (value + 1), and 2 where delta is 1. */

/* Of 16 rows: all of them before the first is used, so that no load waits for a store. */
typedef struct moe_iq1_indices {
    uint16_t point[16][32];
    uint32_t plus[16]; /* IQ1_M: bit i: delta of point i is 1 */
} __attribute__((aligned(64))) moe_iq1_indices;

/* low: the low 8 bits of 32 indices; the others in bits 8..10 of `high` */
MOE_INLINE void moe_iq1_index(uint16_t to[32], const uint8_t *low, __m512i high) {
    __m512i v = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const void *)low));
    _mm512_store_si512(to, moe_or_and(v, high, _mm512_set1_epi16(0x0700)));
}

MOE_INLINE void moe_indices_iq1_s(const moe_rows *r, moe_iq1_indices *to) {
    const __m512i three_bits = _mm512_set1_epi64(0x0900060003000000); /* from bit 3*j of a qword for index j */
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) {
        __m512i high = _mm512_cvtepu16_epi64(moe_row_16(r, offsetof(block_IQ1_S, qh), i));
        moe_iq1_index(to->point[i], moe_row(r, i) + offsetof(block_IQ1_S, qs), _mm512_multishift_epi64_epi8(three_bits, high));
    }
    __asm__("" : "+m"(*to)); /* compilers would take the indices out of the registers again */
}

MOE_INLINE void moe_indices_iq1_m(const moe_rows *r, moe_iq1_indices *to) {
    const __m512i four_bits = _mm512_set1_epi64(0x2400200004000000);
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) {
        __m512i high = _mm512_cvtepu8_epi32(moe_row_16(r, offsetof(block_IQ1_M, qh), i));
        high = _mm512_multishift_epi64_epi8(four_bits, high);
        moe_iq1_index(to->point[i], moe_row(r, i) + offsetof(block_IQ1_M, qs), high);
        to->plus[i] = _mm512_testn_epi16_mask(high, _mm512_set1_epi16(0x0800));
    }
    __asm__("" : "+m"(*to));
}

MOE_INLINE __m128i moe_iq1_two_points(const uint16_t *point) {
    __m128 first = _mm_castsi128_ps(_mm_loadl_epi64((const void *)moe_iq1_points[point[0]]));
    return _mm_castps_si128(_mm_loadh_pi(first, (const void *)moe_iq1_points[point[1]]));
}

/* 64 weights */
MOE_INLINE __m512i moe_iq1_eight_points(const uint16_t *point) {
    __m256i lo = _mm256_set_m128i(moe_iq1_two_points(point + 2), moe_iq1_two_points(point));
    __m256i hi = _mm256_set_m128i(moe_iq1_two_points(point + 6), moe_iq1_two_points(point + 4));
    return _mm512_inserti64x4(_mm512_castsi256_si512(lo), hi, 1);
}

/* the weights of row i in their order, as the head of this file says */
MOE_INLINE void moe_weights_iq1(const moe_iq1_indices *at, const int i, const int has_plus, __m512i w[4]) {
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++) {
        w[k] = moe_iq1_eight_points(at->point[i] + 8 * k);
        if (has_plus) w[k] = _mm512_mask_or_epi64(w[k], (__mmask8)(at->plus[i] >> 8 * k), w[k], _mm512_set1_epi8(2));
    }
}

/* ---- one activation row ---- */

/* 2 * scale + 1 of what 4 words at p hold, as moe_dot_two has their groups; `from`: the bits before the scales */
MOE_INLINE __m512i moe_scales_iq1(const uint8_t *p, __m512i from) {
    uint64_t words;
    memcpy(&words, p, 8);
    __m512i v = _mm512_multishift_epi64_epi8(from, _mm512_set1_epi64((long long)words));
    return _mm512_ternarylogic_epi32(v, _mm512_set1_epi16(0x000e), _mm512_set1_epi16(1), 0xea); /* (v & 14) | 1 */
}

/* scaled sums of one row. Sums of four are at most 16 * 128 * 4 < 2^15. */
MOE_INLINE __m512i moe_dot_iq1(const __m512i w[4], const __m512i x[4], const __m512i start[4], const __m512i sc[2]) {
    __m512i v = _mm512_dpwssd_epi32(_mm512_setzero_si512(), moe_dot_two(w[0], w[1], x, start), sc[0]);
    return _mm512_dpwssd_epi32(v, moe_dot_two(w[2], w[3], x + 2, start + 2), sc[1]);
}

/* scales of row i, 16 bits each, as moe_dot_two has their groups: of the first and of the second half of a block */
MOE_INLINE void moe_scales_iq1_s(const moe_rows *r, const int i, __m512i sc[2]) {
    const __m512i from = _mm512_set_epi64(0x003b003b003b003b, 0x001b001b001b001b, 0x003b003b003b003b, 0x001b001b001b001b,
                                          0x002b002b002b002b, 0x000b000b000b000b, 0x002b002b002b002b, 0x000b000b000b000b);
    const uint8_t *qh = moe_row(r, i) + offsetof(block_IQ1_S, qh);
    sc[0] = moe_scales_iq1(qh, from), sc[1] = moe_scales_iq1(qh + 8, from);
}

MOE_INLINE void moe_scales_iq1_m(const moe_rows *r, const int i, __m512i sc[2]) {
    const __m512i from = _mm512_set_epi64(0x0018001800180018, 0x0008000800080008, 0x0015001500150015, 0x0005000500050005,
                                          0x0012001200120012, 0x0002000200020002, 0x000f000f000f000f, 0x003f003f003f003f);
    const uint8_t *scales = moe_row(r, i) + offsetof(block_IQ1_M, scales);
    sc[0] = moe_scales_iq1(scales, from), sc[1] = moe_scales_iq1(scales, _mm512_add_epi8(from, _mm512_set1_epi8(32)));
}

typedef void moe_iq1_scales(const moe_rows *r, const int i, __m512i sc[2]);

/* scaled sums of 16 rows, of weights + offset; lane = row */
MOE_INLINE __m512i moe_isums_iq1(const moe_rows *r, const moe_iq1_indices *at, const block_x_q8_K *b, const int offset,
                                 const int has_plus, moe_iq1_scales *scales) {
    __m512i x[4], start[4], four[4];
    moe_load_activations(b, offset, x, start);
#pragma GCC unroll 4
    for (int q = 0; q < 4; q++) {
        __m512i v[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            __m512i w[4], sc[2];
            moe_weights_iq1(at, 4 * q + i, has_plus, w);
            scales(r, 4 * q + i, sc);
            v[i] = moe_dot_iq1(w, x, start, sc);
        }
        four[q] = moe_add_four(v);
    }
    return moe_add_lanes(four);
}

typedef struct moe_head_iq1_s { /* dword j: groups 2*j and 2*j + 1, 16 bits each */
    __m512i sc[4], mins[4];     /* 2 * scale + 1, and that times 8 - delta */
} moe_head_iq1_s;

MOE_INLINE moe_head_iq1_s moe_load_head_iq1_s(const moe_rows *r) {
    moe_head_iq1_s head;
    __m512i t[4];
    moe_load_16(r, offsetof(block_IQ1_S, qh), t);
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        __m512i minus = _mm512_and_si512(_mm512_srli_epi16(t[j], 14), _mm512_set1_epi16(2));
        head.sc[j] = _mm512_ternarylogic_epi32(_mm512_srli_epi16(t[j], 11), _mm512_set1_epi16(0x000e), _mm512_set1_epi16(1), 0xea);
        head.mins[j] = _mm512_mullo_epi16(head.sc[j], _mm512_add_epi16(minus, _mm512_set1_epi16(7)));
    }
    return head;
}

MOE_INLINE moe_sums dots_avx512_IQ1_S(const moe_rows *r, const block_x_q8_K *b) {
    moe_iq1_indices at;
    __m512i msum = _mm512_setzero_si512();
    moe_indices_iq1_s(r, &at);
    __m512i isum = moe_isums_iq1(r, &at, b, 0, 0, moe_scales_iq1_s);
    moe_head_iq1_s head = moe_load_head_iq1_s(r);
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) msum = _mm512_dpwssd_epi32(msum, head.mins[j], moe_broadcast_4(b->sum32 + 2 * j));
    __m512 d = moe_load_halves(r, offsetof(block_IQ1_S, d));
    return (moe_sums){isum, msum, _mm512_mul_ps(d, _mm512_set1_ps(0.125f)), d};
}

/* d in four pieces: t[2], t[3] hold the words of the scales */
MOE_INLINE __m512 moe_d_iq1_m(const __m512i t[4]) {
    const __m512i digit = _mm512_set1_epi32(0x000f);
    __m512i bits = _mm512_and_si512(_mm512_srli_epi32(t[2], 12), digit);
    bits = moe_or_and(bits, _mm512_srli_epi32(t[2], 24), _mm512_slli_epi32(digit, 4));
    bits = moe_or_and(bits, _mm512_srli_epi32(t[3], 4), _mm512_slli_epi32(digit, 8));
    bits = moe_or_and(bits, _mm512_srli_epi32(t[3], 16), _mm512_slli_epi32(digit, 12));
    return _mm512_mul_ps(moe_low_half(bits), _mm512_set1_ps(0.125f));
}

MOE_INLINE moe_sums dots_avx512_IQ1_M(const moe_rows *r, const block_x_q8_K *b) {
    moe_iq1_indices at;
    __m512i tail[4];
    moe_indices_iq1_m(r, &at);
    __m512i isum = moe_isums_iq1(r, &at, b, 9, 1, moe_scales_iq1_m);
    moe_load_16(r, sizeof(block_IQ1_M) - 16, tail);
    __m512 d = moe_d_iq1_m(tail);
    return (moe_sums){isum, isum, d, d};
}

/* ---- more activation rows ---- */

typedef struct moe_iq1_rows { /* 16 rows of unpacked weights */
    uint8_t w[16][256];
} __attribute__((aligned(64))) moe_iq1_rows;

MOE_INLINE moe_rows moe_unpack_iq1(const moe_iq1_indices *at, const int has_plus, moe_iq1_rows *to) {
    for (int i = 0; i < 16; i++) {
        __m512i w[4];
        moe_weights_iq1(at, i, has_plus, w);
#pragma GCC unroll 4
        for (int k = 0; k < 4; k++) _mm512_store_si512(to->w[i] + 64 * k, w[k]);
    }
    return moe_rows_at(to->w[0], sizeof to->w[0], 0);
}

MOE_INLINE void rows_avx512_IQ1_S(const moe_rows *r, moe_sink *s) {
    moe_iq1_indices at;
    moe_iq1_rows unpacked;
    moe_indices_iq1_s(r, &at);
    const moe_rows weights = moe_unpack_iq1(&at, 0, &unpacked);
    const moe_head_iq1_s head = moe_load_head_iq1_s(r);
    moe_sink_group(s, 0);
#pragma GCC unroll 8
    for (int g = 0; g < 8; g++) {
        __m512i t[8], scale = moe_byte_twice(head.sc[g / 2], g % 2 * 2);
        moe_load_32(&weights, 32 * (size_t)g, t);
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++) moe_sink_step(s, 8 * g + j, _mm512_mullo_epi16(t[j], scale));
    }
    moe_sink_scale(s, 0, s->isum);
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) moe_sink_mins(s, j, head.mins[j]);
    __m512 d = moe_load_halves(r, offsetof(block_IQ1_S, d));
    moe_sink_finish(s, _mm512_mul_ps(d, _mm512_set1_ps(0.125f)), d);
}
MOE_DERIVE_AVX512_DOT(IQ1_S, folded_whole_min8, folded_whole_min8, moe_dot_neighbours)

MOE_INLINE void rows_avx512_IQ1_M(const moe_rows *r, moe_sink *s) {
    moe_iq1_indices at;
    moe_iq1_rows unpacked;
    moe_indices_iq1_m(r, &at);
    const moe_rows weights = moe_unpack_iq1(&at, 1, &unpacked);
    __m512i tail[4]; /* 8 bytes of qh, 8 of scales */
    moe_load_16(r, sizeof(block_IQ1_M) - 16, tail);
    __m512i t[8];
#pragma GCC unroll 16
    for (int g = 0; g < 16; g++) {
        const int bit = 16 * (g / 4 % 2) + 3 * (g % 4);
        __m512i words = tail[2 + g / 8];
        if (g % 2 == 0) moe_load_32(&weights, 16 * (size_t)g, t);
        moe_sink_group(s, g);
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) moe_sink_step(s, 4 * g + j, t[g % 2 * 4 + j]);
        moe_sink_scale(s, g, moe_odd(bit ? _mm512_srli_epi32(words, (unsigned)bit - 1) : _mm512_slli_epi32(words, 1), 0x0e));
    }
    __m512 d = moe_d_iq1_m(tail);
    moe_sink_finish(s, d, d);
}
MOE_DERIVE_AVX512_DOT(IQ1_M, offset9, offset9, moe_dot_neighbours)
