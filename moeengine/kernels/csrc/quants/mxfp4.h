/* MXFP4: 32 weights in 17 bytes, 4-bit floats (e2m1) with a power of two.
 *
 *   offset  bytes  field
 *        0      1  e   scale 2^(e - 127)
 *        1     16  qs  low nibbles: weights 0..15, high nibbles: 16..31
 *
 *   w[i] = 2^(e - 128) * values[q[i]],  values: twice the e2m1 values, 0 .. 12 and their negatives
 *
 * Source: ggml-common.h, block_mxfp4; OCP Microscaling Formats 1.0.  Oracle in tests:
 * gguf.quants.MXFP4.
 */
typedef struct MOE_PACKED {
    uint8_t e;
    uint8_t qs[16];
} block_MXFP4;

/* 2^(e - 128); e = 0 and 1 give subnormal floats */
MOE_INLINE float moe_e8m0_half(uint8_t e) { return moe_e8m0_halves[e]; }

#define MOE_HAS_MIN_MXFP4 0
MOE_INLINE void unpack_MXFP4(const void *row, size_t i, moe_group *u) {
    const block_MXFP4 *b = (const block_MXFP4 *)row + i;
    for (size_t k = 0; k < 16; k++) {
        u->q[k] = moe_values_mxfp4[b->qs[k] & 15];
        u->q[k + 16] = moe_values_mxfp4[b->qs[k] >> 4];
    }
    u->d = moe_e8m0_half(b->e);
}
