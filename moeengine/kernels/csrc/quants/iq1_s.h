/* IQ1_S: 256 weights in 50 bytes; 8 sub-blocks of 32, each 4 grid points of 8 weights.
 *
 *   offset  bytes  field
 *        0      2  d   fp16
 *        2     32  qs  low 8 bits of 32 grid indices
 *       34     16  qh  16 bits a sub-block: 4 x 3 high bits of the indices, 3 bits of scale, sign
 * of delta
 *
 *   w[i] = d * (2*scale[i/32] + 1) * (grid[index[i/8]][i%8] +- 1/8),  grid values -1, 0, 1
 *
 * As integers: q = 8*grid +- 1 with d/8, which is exact.
 *
 * Source: ggml-common.h, block_iq1_s and iq1s_grid.  Oracle in tests: gguf.quants.IQ1_S.
 */
typedef struct MOE_PACKED {
    uint16_t d;
    uint8_t qs[32];
    uint8_t qh[16];
} block_IQ1_S;

/* one grid point, shifted up or down by an eighth, in eighths -> q */
MOE_INLINE void moe_shifted8(const int8_t *grid, int minus, int8_t *q) {
    for (size_t k = 0; k < 8; k++) q[k] = (int8_t)(8 * grid[k] + (minus ? -1 : 1));
}

#define MOE_HAS_MIN_IQ1_S 0
#define MOE_SCALES_FIRST_IQ1_S 0
MOE_INLINE void unpack_IQ1_S(const void *block, moe_block256 *u) {
    const block_IQ1_S *b = block;
    for (size_t g = 0; g < 8; g++) {
        uint32_t high = moe_load_u16(b->qh + 2 * g);
        u->sc[2 * g] = u->sc[2 * g + 1] = (int16_t)(2 * (high >> 12 & 7) + 1);
        for (size_t j = 0; j < 4; j++)
            moe_shifted8(moe_grid_iq1[b->qs[4 * g + j] | (high >> 3 * j & 7) << 8], high >> 15,
                         u->q + 32 * g + 8 * j);
    }
    u->d = moe_load_half(&b->d) * 0.125f;
}
