/* IQ2_XXS on AVX2. */
MOE_INLINE avx2_grid grid_avx2_IQ2_XXS(const void *block, size_t g) {
    const uint8_t *i = ((const block_IQ2_XXS *)block)->qs + 8 * g;
    uint32_t aux = moe_load_u32(i + 4);
    int16_t sc = (int16_t)(2 * (aux >> 28) + 1);
    return (avx2_grid){avx2_grid8(moe_grid_iq2_xxs[i[0]], moe_grid_iq2_xxs[i[1]], moe_grid_iq2_xxs[i[2]],
                                  moe_grid_iq2_xxs[i[3]]),
                       avx2_signs7(aux), {sc, sc}};
}

MOE_INLINE float d_avx2_IQ2_XXS(const void *block) { return moe_load_half(&((const block_IQ2_XXS *)block)->d) * 0.125f; }

AVX2_MUL_GRIDS(IQ2_XXS, 32, 1, 43)
