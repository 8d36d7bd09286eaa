/* Q4_0: 32 weights in 18 bytes, 4 bits a weight.
 *
 *   offset  bytes  field
 *        0      2  d   fp16
 *        2     16  qs  low nibbles: weights 0..15, high nibbles: 16..31
 *
 *   w[i] = d * (q[i] - 8)
 *
 * Source: ggml-common.h, block_q4_0.  Oracle in tests: gguf.quants.Q4_0.
 */
typedef struct MOE_PACKED {
    uint16_t d;
    uint8_t qs[16];
} block_Q4_0;

#define MOE_HAS_MIN_Q4_0 0
MOE_INLINE void unpack_Q4_0(const void *row, size_t i, moe_group *u) {
    const block_Q4_0 *b = (const block_Q4_0 *)row + i;
    for (size_t k = 0; k < 16; k++) {
        u->q[k] = (int8_t)((b->qs[k] & 15) - 8);
        u->q[k + 16] = (int8_t)((b->qs[k] >> 4) - 8);
    }
    u->d = moe_load_half(&b->d);
}
