/* IQ2_XXS on AVX2. */
MOE_INLINE void prepare_avx2_IQ2_XXS(const void *block, avx2_grid_block *u) {
    const block_IQ2_XXS *b = block;
    /* every second dword; sub-blocks come in the order 0, 1, 4, 5, 2, 3, 6, 7 */
    __m256 words = _mm256_shuffle_ps(_mm256_castsi256_ps(avx2_load(b->qs)),
                                     _mm256_castsi256_ps(avx2_load(b->qs + 32)), 0xdd);
    u->sc = _mm256_shuffle_epi32(avx2_top_scales(_mm256_castps_si256(words)), 0xd8);
    u->d = moe_load_half(&b->d) * 0.125f;
}

MOE_INLINE avx2_grid grid_avx2_IQ2_XXS(const void *block, const avx2_grid_block *u, size_t g) {
    const uint8_t *i = ((const block_IQ2_XXS *)block)->qs + 8 * g;
    (void)u;
    return (avx2_grid){avx2_grid8(moe_grid_iq2_xxs[i[0]], moe_grid_iq2_xxs[i[1]],
                                  moe_grid_iq2_xxs[i[2]], moe_grid_iq2_xxs[i[3]]),
                       avx2_signs7(moe_load_u32(i + 4))};
}

AVX2_MUL_GRIDS(IQ2_XXS, 32, 1, 43)
