/* Q2_K: 256 weights in 84 bytes; 16 sub-blocks of 16, 2 bits a weight.
 *
 *   offset  bytes  field
 *        0     16  scales  low nibble: scale, high nibble: min
 *       16     64  qs      32 bytes for 128 weights: byte i holds those of i, i+32, i+64, i+96
 *       80      2  d       fp16, scale of the sub-block scales
 *       82      2  dmin    fp16, scale of the sub-block mins
 *
 *   w[i] = d * scale[i/16] * q[i]  -  dmin * min[i/16]
 *
 * Source: ggml-common.h, block_q2_K.  Oracle in tests: gguf.quants.Q2_K.
 */
typedef struct MOE_PACKED {
    uint8_t scales[16];
    uint8_t qs[64];
    uint16_t d, dmin;
} block_Q2_K;

#define MOE_HAS_MIN_Q2_K 1
#define MOE_SCALES_FIRST_Q2_K 0
MOE_INLINE void unpack_Q2_K(const void *block, moe_block256 *u) {
    const block_Q2_K *b = block;
    for (size_t g = 0; g < 16; g++) u->sc[g] = b->scales[g] & 15, u->mn[g] = b->scales[g] >> 4;
    for (size_t j = 0; j < 2; j++)
        for (size_t k = 0; k < 4; k++)
            for (size_t i = 0; i < 32; i++)
                u->q[128 * j + 32 * k + i] = (int8_t)(b->qs[32 * j + i] >> 2 * k & 3);
    u->d = moe_load_half(&b->d);
    u->dmin = moe_load_half(&b->dmin);
}
