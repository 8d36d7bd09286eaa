/* IQ1_M: 256 weights in 56 bytes; 16 sub-blocks of 16, each 2 grid points of 8 weights.
 *
 *   offset  bytes  field
 *        0     32  qs      low 8 bits of 32 grid indices
 *       32     16  qh      4 bits an index, low nibble first: 3 high bits of the index, sign of
 * delta 48      8  scales  4 words of 16 bits: 4 x 3 bits of scale, on top 4 bits of d (fp16), low
 * bits first
 *
 *   w[i] = d * (2*scale[i/16] + 1) * (grid[index[i/8]][i%8] +- 1/8),  grid as in IQ1_S
 *
 * Source: ggml-common.h, block_iq1_m.  Oracle in tests: gguf.quants.IQ1_M.
 */
typedef struct MOE_PACKED {
    uint8_t qs[32];
    uint8_t qh[16];
    uint8_t scales[8];
} block_IQ1_M;

/* fp16 bits of d */
MOE_INLINE uint16_t moe_iq1_m_d(const uint8_t *scales) {
    uint32_t d = 0;
    for (size_t k = 0; k < 4; k++) d |= (uint32_t)moe_load_u16(scales + 2 * k) >> 12 << 4 * k;
    return (uint16_t)d;
}

#define MOE_HAS_MIN_IQ1_M 0
#define MOE_SCALES_FIRST_IQ1_M 0
MOE_INLINE void unpack_IQ1_M(const void *block, moe_block256 *u) {
    const block_IQ1_M *b = block;
    for (size_t g = 0; g < 16; g++)
        u->sc[g] = (int16_t)(2 * (moe_load_u16(b->scales + g / 4 * 2) >> 3 * (g % 4) & 7) + 1);
    for (size_t j = 0; j < 32; j++) {
        uint32_t high = b->qh[j / 2] >> 4 * (j % 2) & 15u;
        moe_shifted8(moe_grid_iq1[b->qs[j] | (high & 7) << 8], high >> 3, u->q + 8 * j);
    }
    u->d = f32_from_f16(moe_iq1_m_d(b->scales)) * 0.125f;
}
