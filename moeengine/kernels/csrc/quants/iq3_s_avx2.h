/* IQ3_S on AVX2. */
MOE_INLINE avx2_grid grid_avx2_IQ3_S(const void *block, size_t g) {
    const block_IQ3_S *b = block;
    int16_t sc = (int16_t)(2 * (b->scales[g / 2] >> 4 * (g % 2) & 15) + 1);
    uint16_t i[8];
    for (size_t k = 0; k < 8; k++) i[k] = (uint16_t)(b->qs[8 * g + k] | (b->qh[g] >> k & 1) << 8);
    return (avx2_grid){avx2_grid4(moe_grid_iq3_s, i), avx2_signs8(b->signs + 4 * g), {sc, sc}};
}

MOE_INLINE float d_avx2_IQ3_S(const void *block) { return moe_load_half(&((const block_IQ3_S *)block)->d); }

AVX2_MUL_GRIDS(IQ3_S, 32, 4, 15)
