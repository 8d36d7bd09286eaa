/* IQ3_XXS on AVX2. */
MOE_INLINE void prepare_avx2_IQ3_XXS(const void *block, avx2_grid_block *u) {
    const block_IQ3_XXS *b = block;
    u->sc = avx2_top_scales(avx2_load(b->scales));
    u->d = moe_load_half(&b->d) * 0.25f;
}

MOE_INLINE avx2_grid grid_avx2_IQ3_XXS(const void *block, const avx2_grid_block *u, size_t g) {
    const block_IQ3_XXS *b = block;
    const uint8_t *p = b->qs + 8 * g;
    const uint16_t i[8] = {p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7]};
    (void)u;
    return (avx2_grid){avx2_grid4(moe_grid_iq3_xxs, i),
                       avx2_signs7(moe_load_u32(b->scales + 4 * g))};
}

AVX2_MUL_GRIDS(IQ3_XXS, 32, 1, 62)
