/* IQ4_NL: 32 weights in 18 bytes, 4 bits a weight, values from a table of 16.
 *
 *   offset  bytes  field
 *        0      2  d   fp16
 *        2     16  qs  low nibbles: weights 0..15, high nibbles: 16..31
 *
 *   w[i] = d * values[q[i]],  values: -127 .. 113
 *
 * Source: ggml-common.h, block_iq4_nl and kvalues_iq4nl.  Oracle in tests: gguf.quants.IQ4_NL.
 */
typedef struct MOE_PACKED {
    uint16_t d;
    uint8_t qs[16];
} block_IQ4_NL;

#define MOE_HAS_MIN_IQ4_NL 0
MOE_INLINE void unpack_IQ4_NL(const void *row, size_t i, moe_group *u) {
    const block_IQ4_NL *b = (const block_IQ4_NL *)row + i;
    for (size_t k = 0; k < 16; k++) {
        u->q[k] = moe_values_iq4_nl[b->qs[k] & 15];
        u->q[k + 16] = moe_values_iq4_nl[b->qs[k] >> 4];
    }
    u->d = moe_load_half(&b->d);
}
