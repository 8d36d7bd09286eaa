/* IQ2_S on AVX2. */
MOE_INLINE avx2_grid grid_avx2_IQ2_S(const void *block, size_t g) {
    const block_IQ2_S *b = block;
    const uint8_t *i = b->qs + 4 * g;
    uint32_t high = (uint32_t)b->qh[g] << 8;
    int16_t s0 = (int16_t)(2 * (b->scales[g] & 15) + 1), s1 = (int16_t)(2 * (b->scales[g] >> 4) + 1);
    return (avx2_grid){avx2_grid8(moe_grid_iq2_s[i[0] | (high & 0x300)], moe_grid_iq2_s[i[1] | (high >> 2 & 0x300)],
                                  moe_grid_iq2_s[i[2] | (high >> 4 & 0x300)],
                                  moe_grid_iq2_s[i[3] | (high >> 6 & 0x300)]),
                       avx2_signs8(b->signs + 4 * g), {s0, s1}};
}

MOE_INLINE float d_avx2_IQ2_S(const void *block) { return moe_load_half(&((const block_IQ2_S *)block)->d) * 0.125f; }

AVX2_MUL_GRIDS(IQ2_S, 16, 1, 43)
