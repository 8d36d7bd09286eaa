/* IQ3_XXS: 256 weights in 98 bytes; 8 sub-blocks of 32, each 8 grid points of 4 weights.
 *
 *   offset  bytes  field
 *        0      2  d       fp16
 *        2     64  qs      8-bit grid indices
 *       66     32  scales  a 32-bit word a sub-block: 4 x 7 sign bits as in IQ2_XXS, on top 4 bits
 * of scale
 *
 *   w[i] = d / 4 * (2*scale[i/32] + 1) * sign[i] * grid[index[i/4]][i%4]
 *
 * Source: ggml-common.h, block_iq3_xxs and iq3xxs_grid.  Oracle in tests: gguf.quants.IQ3_XXS.
 */
typedef struct MOE_PACKED {
    uint16_t d;
    uint8_t qs[64];
    uint8_t scales[32];
} block_IQ3_XXS;

/* two grid points of 4 values with 8 sign bits -> q */
MOE_INLINE void moe_signed44(const uint8_t *grid0, const uint8_t *grid1, uint8_t signs, int8_t *q) {
    for (size_t k = 0; k < 4; k++) {
        q[k] = (int8_t)(grid0[k] * moe_signs8[signs][k]);
        q[k + 4] = (int8_t)(grid1[k] * moe_signs8[signs][k + 4]);
    }
}

#define MOE_HAS_MIN_IQ3_XXS 0
#define MOE_SCALES_FIRST_IQ3_XXS 0
MOE_INLINE void unpack_IQ3_XXS(const void *block, moe_block256 *u) {
    const block_IQ3_XXS *b = block;
    for (size_t g = 0; g < 8; g++) {
        uint32_t aux = moe_load_u32(b->scales + 4 * g);
        u->sc[2 * g] = u->sc[2 * g + 1] = (int16_t)(2 * (aux >> 28) + 1);
        for (size_t j = 0; j < 4; j++) {
            const uint8_t *index = b->qs + 8 * g + 2 * j;
            moe_signed44(moe_grid_iq3_xxs[index[0]], moe_grid_iq3_xxs[index[1]],
                         moe_signs7[aux >> 7 * j & 127], u->q + 32 * g + 8 * j);
        }
    }
    u->d = moe_load_half(&b->d) * 0.25f;
}
