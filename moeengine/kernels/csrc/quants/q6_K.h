/* Q6_K: 256 weights in 210 bytes; 16 sub-blocks of 16, 6 bits a weight.
 *
 *   offset  bytes  field
 *        0    128  ql      low 4 bits: 64 bytes for 128 weights: low nibbles 0..63, high
 * nibbles 64..127 128     64  qh      high 2 bits: 32 bytes for 128 weights: byte i holds those of
 * i, i+32, i+64, i+96 192     16  scales  int8 208      2  d       fp16, scale of the sub-block
 * scales
 *
 *   w[i] = d * scales[i/16] * (q[i] - 32)
 *
 * Source: ggml-common.h, block_q6_K.  Oracle in tests: gguf.quants.Q6_K.
 */
typedef struct MOE_PACKED {
    uint8_t ql[128];
    uint8_t qh[64];
    int8_t scales[16];
    uint16_t d;
} block_Q6_K;

#define MOE_HAS_MIN_Q6_K 0
#define MOE_SCALES_FIRST_Q6_K 1
MOE_INLINE void unpack_Q6_K(const void *block, moe_block256 *u) {
    const block_Q6_K *b = block;
    for (size_t g = 0; g < 16; g++) u->sc[g] = b->scales[g];
    for (size_t j = 0; j < 2; j++)
        for (size_t i = 0; i < 32; i++) {
            uint8_t high = b->qh[32 * j + i], l0 = b->ql[64 * j + i], l1 = b->ql[64 * j + 32 + i];
            int8_t *q = u->q + 128 * j + i;
            q[0] = (int8_t)(((l0 & 15) | (high & 3) << 4) - 32);
            q[32] = (int8_t)(((l1 & 15) | (high >> 2 & 3) << 4) - 32);
            q[64] = (int8_t)((l0 >> 4 | (high >> 4 & 3) << 4) - 32);
            q[96] = (int8_t)((l1 >> 4 | (high >> 6) << 4) - 32);
        }
    u->d = moe_load_half(&b->d);
}
