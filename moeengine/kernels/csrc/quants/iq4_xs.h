/* IQ4_XS: 256 weights in 136 bytes; 8 sub-blocks of 32, 4 bits a weight, values from a table of 16.
 *
 *   offset  bytes  field
 *        0      2  d         fp16, scale of the sub-block scales
 *        2      2  scales_h  high 2 bits of the 8 scales
 *        4      4  scales_l  low 4 bits, two a byte
 *        8    128  qs        16 bytes a sub-block: low nibbles: weights 0..15, high nibbles: 16..31
 *
 *   w[i] = d * (scale[i/32] - 32) * values[q[i]],  values as in IQ4_NL
 *
 * Source: ggml-common.h, block_iq4_xs.  Oracle in tests: gguf.quants.IQ4_XS.
 */
typedef struct MOE_PACKED {
    uint16_t d, scales_h;
    uint8_t scales_l[4];
    uint8_t qs[128];
} block_IQ4_XS;

#define MOE_HAS_MIN_IQ4_XS 0
#define MOE_SCALES_FIRST_IQ4_XS 1
MOE_INLINE void unpack_IQ4_XS(const void *block, moe_block256 *u) {
    const block_IQ4_XS *b = block;
    uint32_t high = moe_load_u16(&b->scales_h), low = moe_load_u32(b->scales_l);
    for (size_t g = 0; g < 8; g++) {
        int sc = (int)((low >> 4 * g & 15) | (high >> 2 * g & 3) << 4) - 32;
        u->sc[2 * g] = u->sc[2 * g + 1] = (int16_t)sc;
        for (size_t k = 0; k < 16; k++) {
            u->q[32 * g + k] = moe_values_iq4_nl[b->qs[16 * g + k] & 15];
            u->q[32 * g + k + 16] = moe_values_iq4_nl[b->qs[16 * g + k] >> 4];
        }
    }
    u->d = moe_load_half(&b->d);
}
