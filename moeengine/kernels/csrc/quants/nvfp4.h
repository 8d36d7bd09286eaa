/* NVFP4: 64 weights in 36 bytes; 4 groups of 16, 4-bit floats (e2m1) with an 8-bit float scale.
 *
 *   offset  bytes  field
 *        0      4  d   unsigned e4m3 (bias 7), one a group; 0 and 0x7f mean 0
 *        4     32  qs  8 bytes a group: low nibbles: weights 0..7, high nibbles: 8..15
 *
 *   w[i] = d[i/16] / 2 * values[q[i]],  values: twice the e2m1 values, 0 .. 12 and their negatives
 *
 * A group is 16 weights here, so the kernels take two steps for one 32-block of activations.
 *
 * Source: ggml-common.h, block_nvfp4; ggml-impl.h for the scale.  Oracle in tests:
 * gguf.quants.NVFP4.
 */
typedef struct MOE_PACKED {
    uint8_t d[4];
    uint8_t qs[32];
} block_NVFP4;

/* half the value of an unsigned e4m3 number; bit 7 is ignored */
MOE_INLINE float moe_ue4m3_half(uint8_t x) { return moe_ue4m3_halves[x]; }

#define MOE_HAS_MIN_NVFP4 0
MOE_INLINE void unpack_NVFP4(const void *row, size_t i, moe_group *u) {
    const block_NVFP4 *b = (const block_NVFP4 *)row + i / 4;
    for (size_t k = 0; k < 8; k++) {
        uint8_t pair = b->qs[i % 4 * 8 + k];
        u->q[k] = moe_values_mxfp4[pair & 15];
        u->q[k + 8] = moe_values_mxfp4[pair >> 4];
    }
    u->d = moe_ue4m3_half(b->d[i % 4]);
}
