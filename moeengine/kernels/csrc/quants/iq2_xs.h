/* IQ2_XS: 256 weights in 74 bytes; 16 sub-blocks of 16, each 2 grid points of 8 weights.
 *
 *   offset  bytes  field
 *        0      2  d       fp16
 *        2     64  qs      16 bits for 8 weights: 9 bits of grid index, 7 sign bits as in IQ2_XXS
 *       66      8  scales  4 bits a sub-block, low nibble first
 *
 *   w[i] = d / 8 * (2*scale[i/16] + 1) * sign[i] * grid[index[i/8]][i%8]
 *
 * Source: ggml-common.h, block_iq2_xs and iq2xs_grid.  Oracle in tests: gguf.quants.IQ2_XS.
 */
typedef struct MOE_PACKED {
    uint16_t d;
    uint8_t qs[64];
    uint8_t scales[8];
} block_IQ2_XS;

#define MOE_HAS_MIN_IQ2_XS 0
#define MOE_SCALES_FIRST_IQ2_XS 0
MOE_INLINE void unpack_IQ2_XS(const void *block, moe_block256 *u) {
    const block_IQ2_XS *b = block;
    for (size_t g = 0; g < 16; g++)
        u->sc[g] = (int16_t)(2 * (b->scales[g / 2] >> 4 * (g % 2) & 15) + 1);
    for (size_t j = 0; j < 32; j++) {
        uint16_t v = moe_load_u16(b->qs + 2 * j);
        moe_signed8(moe_grid_iq2_xs[v & 511], moe_signs7[v >> 9], u->q + 8 * j);
    }
    u->d = moe_load_half(&b->d) * 0.125f;
}
