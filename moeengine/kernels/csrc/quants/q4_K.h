/* Q4_K: 256 weights in 144 bytes; 8 sub-blocks of 32, 4 bits a weight.
 *
 *   offset  bytes  field
 *        0      2  d       fp16, scale of the sub-block scales
 *        2      2  dmin    fp16, scale of the sub-block mins
 *        4     12  scales  8 pairs (6-bit scale, 6-bit min), packed:
 *                            bytes 0..3   scale 0..3, above them the high 2 bits of scale 4..7
 *                            bytes 4..7   min 0..3, above them the high 2 bits of min 4..7
 *                            bytes 8..11  low 4 bits of scale 4..7, above them those of min 4..7
 *       16    128  qs      32 bytes for 64 weights: low nibbles 0..31, high nibbles 32..63
 *
 *   w[i] = d * scale[i/32] * q[i]  -  dmin * min[i/32]
 *
 * Source: ggml-common.h, block_q4_K.  Oracle in tests: gguf.quants.Q4_K.
 */
typedef struct MOE_PACKED {
    uint16_t d, dmin;
    uint8_t scales[12];
    uint8_t qs[128];
} block_Q4_K;

/* the 12 packed bytes -> 8 scales and 8 mins, 0 .. 63 */
MOE_INLINE void moe_unpack_scales_k4(const uint8_t *packed, uint8_t *sc, uint8_t *mn) {
    uint32_t a = moe_load_u32(packed), b = moe_load_u32(packed + 4), c = moe_load_u32(packed + 8);
    uint32_t out[4] = {a & 0x3f3f3f3f, (c & 0x0f0f0f0f) | (a >> 2 & 0x30303030), b & 0x3f3f3f3f,
                       (c >> 4 & 0x0f0f0f0f) | (b >> 2 & 0x30303030)};
    memcpy(sc, out, 8);
    memcpy(mn, out + 2, 8);
}

#define MOE_HAS_MIN_Q4_K 1
#define MOE_SCALES_FIRST_Q4_K 1
MOE_INLINE void unpack_Q4_K(const void *block, moe_block256 *u) {
    const block_Q4_K *b = block;
    uint8_t sc[8], mn[8];
    moe_unpack_scales_k4(b->scales, sc, mn);
    for (size_t g = 0; g < 16; g++) u->sc[g] = sc[g / 2], u->mn[g] = mn[g / 2];
    for (size_t j = 0; j < 4; j++)
        for (size_t i = 0; i < 32; i++) {
            u->q[64 * j + i] = (int8_t)(b->qs[32 * j + i] & 15);
            u->q[64 * j + 32 + i] = (int8_t)(b->qs[32 * j + i] >> 4);
        }
    u->d = moe_load_half(&b->d);
    u->dmin = moe_load_half(&b->dmin);
}
