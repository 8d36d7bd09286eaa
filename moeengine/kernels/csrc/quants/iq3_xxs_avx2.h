/* IQ3_XXS on AVX2. */
MOE_INLINE avx2_grid grid_avx2_IQ3_XXS(const void *block, size_t g) {
    const block_IQ3_XXS *b = block;
    uint32_t aux = moe_load_u32(b->scales + 4 * g);
    int16_t sc = (int16_t)(2 * (aux >> 28) + 1);
    uint16_t i[8];
    for (size_t k = 0; k < 8; k++) i[k] = b->qs[8 * g + k];
    return (avx2_grid){avx2_grid4(moe_grid_iq3_xxs, i), avx2_signs7(aux), {sc, sc}};
}

MOE_INLINE float d_avx2_IQ3_XXS(const void *block) { return moe_load_half(&((const block_IQ3_XXS *)block)->d) * 0.25f; }

AVX2_MUL_GRIDS(IQ3_XXS, 32, 1, 62)
