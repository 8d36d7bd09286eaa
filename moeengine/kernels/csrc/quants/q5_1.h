/* Q5_1: 32 weights in 24 bytes, 5 bits a weight.
 *
 *   offset  bytes  field
 *        0      2  d   fp16
 *        2      2  m   fp16, value of q = 0
 *        4      4  qh  bit 4 of weight i is bit i
 *        8     16  qs  low nibbles: weights 0..15, high nibbles: 16..31
 *
 *   w[i] = d * q[i] + m
 *
 * Source: ggml-common.h, block_q5_1.  Oracle in tests: gguf.quants.Q5_1.
 */
typedef struct MOE_PACKED {
    uint16_t d, m;
    uint8_t qh[4];
    uint8_t qs[16];
} block_Q5_1;

#define MOE_HAS_MIN_Q5_1 1
MOE_INLINE void unpack_Q5_1(const void *row, size_t i, moe_group *u) {
    const block_Q5_1 *b = (const block_Q5_1 *)row + i;
    uint32_t high = moe_load_u32(b->qh);
    for (size_t k = 0; k < 16; k++) {
        u->q[k] = (int8_t)((b->qs[k] & 15) | (high >> k & 1) << 4);
        u->q[k + 16] = (int8_t)(b->qs[k] >> 4 | (high >> (k + 16) & 1) << 4);
    }
    u->d = moe_load_half(&b->d);
    u->m = moe_load_half(&b->m);
}
