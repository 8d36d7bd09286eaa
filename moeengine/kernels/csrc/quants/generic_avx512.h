/* AVX-512: steps of any 256-weight type from its scalar unpack, for types without a faster way of their own. */

typedef struct moe_unpacked_rows { /* 16 rows, as moe_block256 */
    uint8_t q[16][256]; /* weight + 128 */
    int16_t sc[16][16];
    float d[16];
} __attribute__((aligned(64))) moe_unpacked_rows;

MOE_INLINE void moe_unpack_rows_256(const moe_rows *r, moe_unpack256 *unpack, moe_unpacked_rows *u) {
    moe_block256 block;
    for (int i = 0; i < 16; i++) {
        unpack(moe_row(r, i), &block);
        for (size_t k = 0; k < 256; k += 64)
            _mm512_store_si512(u->q[i] + k, _mm512_xor_si512(_mm512_loadu_si512(block.q + k), _mm512_set1_epi8(-128)));
        memcpy(u->sc[i], block.sc, sizeof u->sc[i]);
        u->d[i] = block.d;
    }
}

MOE_INLINE void moe_rows_generic(const moe_rows *r, moe_sink *s, moe_unpack256 *unpack) {
    const int scaled = s->kind.n_groups > 1;
    moe_unpacked_rows u;
    moe_unpack_rows_256(r, unpack, &u);
    const moe_rows weights = moe_rows_at(u.q[0], sizeof u.q[0], 0);
    const moe_rows scales = moe_rows_at((const uint8_t *)u.sc, sizeof u.sc[0], 0);
    __m512i sc[8]; /* two groups a dword */
    moe_load_32(&scales, 0, sc);
#pragma GCC unroll 8
    for (int c = 0; c < 8; c++) {
        __m512i t[8];
        moe_load_32(&weights, 32 * (size_t)c, t);
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++) {
            if (j % 4 == 0 && (scaled || 8 * c + j == 0)) moe_sink_group(s, 2 * c + j / 4);
            moe_sink_step(s, 8 * c + j, t[j]);
            if (j == 3 && scaled) moe_sink_scale(s, 2 * c, _mm512_srai_epi32(_mm512_slli_epi32(sc[c], 16), 16));
        }
        if (scaled || c == 7) moe_sink_scale(s, 2 * c + 1, _mm512_srai_epi32(sc[c], 16));
    }
    __m512 d = _mm512_load_ps(u.d);
    moe_sink_finish(s, d, d);
}

#define MOE_GENERIC_AVX512(NAME, KIND)                                            \
    MOE_INLINE void rows_avx512_##NAME(const moe_rows *r, moe_sink *s) {          \
        moe_rows_generic(r, s, unpack_##NAME);                                    \
    }                                                                             \
    MOE_DERIVE_AVX512_256(NAME, KIND, KIND)

MOE_GENERIC_AVX512(IQ1_S, generic16)
MOE_GENERIC_AVX512(IQ1_M, generic16)
MOE_GENERIC_AVX512(TQ1_0, generic1) /* all scales are 1 */
MOE_GENERIC_AVX512(TQ2_0, generic1)
