/* Q5_K: 256 weights in 176 bytes; 8 sub-blocks of 32, 5 bits a weight.
 *
 *   offset  bytes  field
 *        0      2  d       fp16, scale of the sub-block scales
 *        2      2  dmin    fp16, scale of the sub-block mins
 *        4     12  scales  8 pairs (6-bit scale, 6-bit min), packed as in Q4_K
 *       16     32  qh      bit 4: byte i, bit j belongs to weight 32*j + i
 *       48    128  qs      low 4 bits: 32 bytes for 64 weights: low nibbles 0..31, high
 * nibbles 32..63
 *
 *   w[i] = d * scale[i/32] * q[i]  -  dmin * min[i/32]
 *
 * Source: ggml-common.h, block_q5_K.  Oracle in tests: gguf.quants.Q5_K.
 */
typedef struct MOE_PACKED {
    uint16_t d, dmin;
    uint8_t scales[12];
    uint8_t qh[32];
    uint8_t qs[128];
} block_Q5_K;

#define MOE_HAS_MIN_Q5_K 1
#define MOE_SCALES_FIRST_Q5_K 1
MOE_INLINE void unpack_Q5_K(const void *block, moe_block256 *u) {
    const block_Q5_K *b = block;
    uint8_t sc[8], mn[8];
    moe_unpack_scales_k4(b->scales, sc, mn);
    for (size_t g = 0; g < 16; g++) u->sc[g] = sc[g / 2], u->mn[g] = mn[g / 2];
    for (size_t j = 0; j < 4; j++)
        for (size_t i = 0; i < 32; i++) {
            uint8_t low = b->qs[32 * j + i], high = (uint8_t)(b->qh[i] >> 2 * j);
            u->q[64 * j + i] = (int8_t)((low & 15) | (high & 1) << 4);
            u->q[64 * j + 32 + i] = (int8_t)(low >> 4 | (high & 2) << 3);
        }
    u->d = moe_load_half(&b->d);
    u->dmin = moe_load_half(&b->dmin);
}
