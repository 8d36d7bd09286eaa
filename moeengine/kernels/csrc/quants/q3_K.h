/* Q3_K: 256 weights in 110 bytes; 16 sub-blocks of 16, 3 bits a weight.
 *
 *   offset  bytes  field
 *        0     32  hmask   high bit: byte i, bit j belongs to weight 32*j + i
 *       32     64  qs      low 2 bits: 32 bytes for 128 weights: byte i holds those of i, i+32,
 * i+64, i+96 96     12  scales  16 6-bit scales, packed: low 4 bits of scale i (i < 8) and i+8 in
 * byte i; high 2 bits of scales i, i+4, i+8, i+12 in byte 8+i (i < 4) 108      2  d       fp16,
 * scale of the sub-block scales
 *
 *   w[i] = d * (scale[i/16] - 32) * (low[i] + 4*high[i] - 4)
 *
 * Source: ggml-common.h, block_q3_K.  Oracle in tests: gguf.quants.Q3_K.
 */
typedef struct MOE_PACKED {
    uint8_t hmask[32];
    uint8_t qs[64];
    uint8_t scales[12];
    uint16_t d;
} block_Q3_K;

/* the 12 packed bytes -> 16 scales, 0 .. 63 */
MOE_INLINE void moe_unpack_scales_q3_K(const uint8_t *packed, uint8_t *sc) {
    uint32_t a = moe_load_u32(packed), b = moe_load_u32(packed + 4), c = moe_load_u32(packed + 8);
    uint32_t out[4] = {(a & 0x0f0f0f0f) | (c & 0x03030303) << 4,
                       (b & 0x0f0f0f0f) | (c >> 2 & 0x03030303) << 4,
                       (a >> 4 & 0x0f0f0f0f) | (c >> 4 & 0x03030303) << 4,
                       (b >> 4 & 0x0f0f0f0f) | (c >> 6 & 0x03030303) << 4};
    memcpy(sc, out, 16);
}

#define MOE_HAS_MIN_Q3_K 0
#define MOE_SCALES_FIRST_Q3_K 0
MOE_INLINE void unpack_Q3_K(const void *block, moe_block256 *u) {
    const block_Q3_K *b = block;
    uint8_t sc[16];
    moe_unpack_scales_q3_K(b->scales, sc);
    for (size_t g = 0; g < 16; g++) u->sc[g] = (int16_t)(sc[g] - 32);
    for (size_t j = 0; j < 2; j++)
        for (size_t k = 0; k < 4; k++)
            for (size_t i = 0; i < 32; i++) {
                int low = b->qs[32 * j + i] >> 2 * k & 3, high = b->hmask[i] >> (4 * j + k) & 1;
                u->q[128 * j + 32 * k + i] = (int8_t)(low + 4 * high - 4);
            }
    u->d = moe_load_half(&b->d);
}
