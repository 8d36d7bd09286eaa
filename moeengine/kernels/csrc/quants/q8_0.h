/* Q8_0: 32 weights in 34 bytes, 8 bits a weight.
 *
 *   offset  bytes  field
 *        0      2  d   fp16
 *        2     32  qs  int8
 *
 *   w[i] = d * qs[i]
 *
 * Source: ggml-common.h, block_q8_0.  Oracle in tests: gguf.quants.Q8_0.
 */
typedef struct MOE_PACKED {
    uint16_t d;
    int8_t qs[32];
} block_Q8_0;

#define MOE_HAS_MIN_Q8_0 0
MOE_INLINE void unpack_Q8_0(const void *row, size_t i, moe_group *u) {
    const block_Q8_0 *b = (const block_Q8_0 *)row + i;
    memcpy(u->q, b->qs, 32);
    u->d = moe_load_half(&b->d);
}
