/* Q4_1: 32 weights in 20 bytes, 4 bits a weight.
 *
 *   offset  bytes  field
 *        0      2  d   fp16
 *        2      2  m   fp16, value of q = 0
 *        4     16  qs  low nibbles: weights 0..15, high nibbles: 16..31
 *
 *   w[i] = d * q[i] + m
 *
 * Source: ggml-common.h, block_q4_1.  Oracle in tests: gguf.quants.Q4_1.
 */
typedef struct MOE_PACKED {
    uint16_t d, m;
    uint8_t qs[16];
} block_Q4_1;

#define MOE_HAS_MIN_Q4_1 1
MOE_INLINE void unpack_Q4_1(const void *row, size_t i, moe_group *u) {
    const block_Q4_1 *b = (const block_Q4_1 *)row + i;
    for (size_t k = 0; k < 16; k++) {
        u->q[k] = (int8_t)(b->qs[k] & 15);
        u->q[k + 16] = (int8_t)(b->qs[k] >> 4);
    }
    u->d = moe_load_half(&b->d);
    u->m = moe_load_half(&b->m);
}
