/* IQ3_S: 256 weights in 110 bytes; 8 sub-blocks of 32, each 8 grid points of 4 weights.
 *
 *   offset  bytes  field
 *        0      2  d       fp16
 *        2     64  qs      low 8 bits of 64 grid indices
 *       66      8  qh      high bit of 8 grid indices a byte
 *       74     32  signs   8 sign bits for 8 weights
 *      106      4  scales  4 bits a sub-block, low nibble first
 *
 *   w[i] = d * (2*scale[i/32] + 1) * sign[i] * grid[index[i/4]][i%4]
 *
 * Source: ggml-common.h, block_iq3_s and iq3s_grid.  Oracle in tests: gguf.quants.IQ3_S.
 */
typedef struct MOE_PACKED {
    uint16_t d;
    uint8_t qs[64];
    uint8_t qh[8];
    uint8_t signs[32];
    uint8_t scales[4];
} block_IQ3_S;

#define MOE_HAS_MIN_IQ3_S 0
#define MOE_SCALES_FIRST_IQ3_S 0
MOE_INLINE void unpack_IQ3_S(const void *block, moe_block256 *u) {
    const block_IQ3_S *b = block;
    for (size_t g = 0; g < 8; g++) {
        u->sc[2 * g] = u->sc[2 * g + 1] = (int16_t)(2 * (b->scales[g / 2] >> 4 * (g % 2) & 15) + 1);
        for (size_t j = 0; j < 4; j++) {
            const uint8_t *low = b->qs + 8 * g + 2 * j;
            uint32_t high = (uint32_t)b->qh[g] >> 2 * j;
            moe_signed44(moe_grid_iq3_s[low[0] | (high & 1) << 8],
                         moe_grid_iq3_s[low[1] | (high & 2) << 7], b->signs[4 * g + j],
                         u->q + 32 * g + 8 * j);
        }
    }
    u->d = moe_load_half(&b->d);
}
