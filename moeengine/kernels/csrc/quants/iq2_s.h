/* IQ2_S: 256 weights in 82 bytes; 16 sub-blocks of 16, each 2 grid points of 8 weights.
 *
 *   offset  bytes  field
 *        0      2  d       fp16
 *        2     32  qs      low 8 bits of 32 grid indices
 *       34     32  signs   8 sign bits for 8 weights
 *       66      8  qh      high 2 bits of 4 grid indices a byte
 *       74      8  scales  4 bits a sub-block, low nibble first
 *
 *   w[i] = d / 8 * (2*scale[i/16] + 1) * sign[i] * grid[index[i/8]][i%8]
 *
 * Source: ggml-common.h, block_iq2_s and iq2s_grid.  Oracle in tests: gguf.quants.IQ2_S.
 */
typedef struct MOE_PACKED {
    uint16_t d;
    uint8_t qs[32];
    uint8_t signs[32];
    uint8_t qh[8];
    uint8_t scales[8];
} block_IQ2_S;

#define MOE_HAS_MIN_IQ2_S 0
#define MOE_SCALES_FIRST_IQ2_S 0
MOE_INLINE void unpack_IQ2_S(const void *block, moe_block256 *u) {
    const block_IQ2_S *b = block;
    for (size_t g = 0; g < 16; g++)
        u->sc[g] = (int16_t)(2 * (b->scales[g / 2] >> 4 * (g % 2) & 15) + 1);
    for (size_t j = 0; j < 32; j++) {
        uint32_t index = b->qs[j] | (b->qh[j / 4] >> 2 * (j % 4) & 3u) << 8;
        moe_signed8(moe_grid_iq2_s[index], b->signs[j], u->q + 8 * j);
    }
    u->d = moe_load_half(&b->d) * 0.125f;
}
