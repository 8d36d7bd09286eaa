/* IQ2_XXS: 256 weights in 66 bytes; 8 sub-blocks of 32, each 4 grid points of 8 weights.
 *
 *   offset  bytes  field
 *        0      2  d   fp16
 *        2     64  qs  8 bytes a sub-block: 4 grid indices (8 bits), then a 32-bit word: 4 x 7 sign
 * bits, on top 4 bits of scale. The eighth sign makes the number of minuses even.
 *
 *   w[i] = d / 8 * (2*scale[i/32] + 1) * sign[i] * grid[index[i/8]][i%8]
 *
 * Source: ggml-common.h, block_iq2_xxs and iq2xxs_grid.  Oracle in tests: gguf.quants.IQ2_XXS.
 */
typedef struct MOE_PACKED {
    uint16_t d;
    uint8_t qs[64];
} block_IQ2_XXS;

/* 8 grid values with 8 sign bits -> q */
MOE_INLINE void moe_signed8(const uint8_t *grid, uint8_t signs, int8_t *q) {
    for (size_t k = 0; k < 8; k++) q[k] = (int8_t)(grid[k] * moe_signs8[signs][k]);
}

#define MOE_HAS_MIN_IQ2_XXS 0
#define MOE_SCALES_FIRST_IQ2_XXS 0
MOE_INLINE void unpack_IQ2_XXS(const void *block, moe_block256 *u) {
    const block_IQ2_XXS *b = block;
    for (size_t g = 0; g < 8; g++) {
        uint32_t aux = moe_load_u32(b->qs + 8 * g + 4);
        u->sc[2 * g] = u->sc[2 * g + 1] = (int16_t)(2 * (aux >> 28) + 1);
        for (size_t j = 0; j < 4; j++)
            moe_signed8(moe_grid_iq2_xxs[b->qs[8 * g + j]], moe_signs7[aux >> 7 * j & 127],
                        u->q + 32 * g + 8 * j);
    }
    u->d = moe_load_half(&b->d) * 0.125f;
}
