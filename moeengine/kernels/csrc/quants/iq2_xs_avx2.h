/* IQ2_XS on AVX2. */
MOE_INLINE void prepare_avx2_IQ2_XS(const void *block, avx2_grid_block *u) {
    const block_IQ2_XS *b = block;
    for (size_t k = 0; k < 2; k++) {
        __m256i v = avx2_load(b->qs + 32 * k);
        _mm256_storeu_si256((__m256i *)(u->i + 16 * k),
                            _mm256_and_si256(v, _mm256_set1_epi16(511)));
        _mm256_storeu_si256((__m256i *)(u->s + 16 * k), _mm256_srli_epi16(v, 9));
    }
    u->sc = avx2_nibble_scales(b->scales);
    u->d = moe_load_half(&b->d) * 0.125f;
}

MOE_INLINE avx2_grid grid_avx2_IQ2_XS(const void *block, const avx2_grid_block *u, size_t g) {
    const uint16_t *i = u->i + 4 * g, *s = u->s + 4 * g;
    (void)block;
    return (avx2_grid){avx2_grid8(moe_grid_iq2_xs[i[0]], moe_grid_iq2_xs[i[1]],
                                  moe_grid_iq2_xs[i[2]], moe_grid_iq2_xs[i[3]]),
                       avx2_grid8(moe_signs7_bytes[s[0]], moe_signs7_bytes[s[1]],
                                  moe_signs7_bytes[s[2]], moe_signs7_bytes[s[3]])};
}

AVX2_MUL_GRIDS(IQ2_XS, 16, 1, 43)
