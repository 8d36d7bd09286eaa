/* IQ2_XS on AVX2. */
MOE_INLINE avx2_grid grid_avx2_IQ2_XS(const void *block, size_t g) {
    const block_IQ2_XS *b = block;
    uint16_t v[4];
    memcpy(v, b->qs + 8 * g, 8);
    int16_t s0 = (int16_t)(2 * (b->scales[g] & 15) + 1), s1 = (int16_t)(2 * (b->scales[g] >> 4) + 1);
    return (avx2_grid){avx2_grid8(moe_grid_iq2_xs[v[0] & 511], moe_grid_iq2_xs[v[1] & 511],
                                  moe_grid_iq2_xs[v[2] & 511], moe_grid_iq2_xs[v[3] & 511]),
                       avx2_grid8(moe_signs7_bytes[v[0] >> 9], moe_signs7_bytes[v[1] >> 9],
                                  moe_signs7_bytes[v[2] >> 9], moe_signs7_bytes[v[3] >> 9]),
                       {s0, s1}};
}

MOE_INLINE float d_avx2_IQ2_XS(const void *block) { return moe_load_half(&((const block_IQ2_XS *)block)->d) * 0.125f; }

AVX2_MUL_GRIDS(IQ2_XS, 16, 1, 43)
