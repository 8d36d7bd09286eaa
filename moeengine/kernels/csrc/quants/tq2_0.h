/* TQ2_0: 256 weights in 66 bytes, ternary, 2 bits a weight.
 *
 *   offset  bytes  field
 *        0     64  qs  32 bytes for 128 weights: byte i holds those of i, i+32, i+64, i+96
 *       64      2  d   fp16
 *
 *   w[i] = d * (q[i] - 1)
 *
 * Source: ggml-common.h, block_tq2_0.  Oracle in tests: gguf.quants.TQ2_0.
 */
typedef struct MOE_PACKED {
    uint8_t qs[64];
    uint16_t d;
} block_TQ2_0;

#define MOE_HAS_MIN_TQ2_0 0
#define MOE_SCALES_FIRST_TQ2_0 0
MOE_INLINE void unpack_TQ2_0(const void *block, moe_block256 *u) {
    const block_TQ2_0 *b = block;
    for (size_t g = 0; g < 16; g++) u->sc[g] = 1;
    for (size_t j = 0; j < 2; j++)
        for (size_t k = 0; k < 4; k++)
            for (size_t i = 0; i < 32; i++)
                u->q[128 * j + 32 * k + i] = (int8_t)((b->qs[32 * j + i] >> 2 * k & 3) - 1);
    u->d = moe_load_half(&b->d);
}
