/* TQ1_0: 256 weights in 54 bytes, ternary, 5 weights a byte in base 3.
 *
 *   offset  bytes  field
 *        0     48  qs  bytes 0..31: weights i, i+32, .. i+128; bytes 32..47: weights 160+i, +16, ..
 * +64 48      4  qh  4 weights a byte: 240+i, +4, .. +12 52      2  d   fp16
 *
 * Digit n of a byte v (most significant first) is ((v * 3^n) % 256) * 3 / 256, rounded down.
 *
 *   w[i] = d * (digit[i] - 1)
 *
 * Source: ggml-common.h, block_tq1_0; ggml-quants.c for the digits.  Oracle in tests:
 * gguf.quants.TQ1_0.
 */
typedef struct MOE_PACKED {
    uint8_t qs[48];
    uint8_t qh[4];
    uint16_t d;
} block_TQ1_0;

/* digit n of `count` bytes, n < n_digits -> q, one digit after another */
MOE_INLINE void moe_trits(size_t count, size_t n_digits, const uint8_t *v, int8_t *q) {
    static const uint8_t pow3[5] = {1, 3, 9, 27, 81};
    for (size_t n = 0; n < n_digits; n++)
        for (size_t i = 0; i < count; i++)
            q[n * count + i] = (int8_t)(((uint8_t)(v[i] * pow3[n]) * 3 >> 8) - 1);
}

#define MOE_HAS_MIN_TQ1_0 0
#define MOE_SCALES_FIRST_TQ1_0 0
MOE_INLINE void unpack_TQ1_0(const void *block, moe_block256 *u) {
    const block_TQ1_0 *b = block;
    for (size_t g = 0; g < 16; g++) u->sc[g] = 1;
    moe_trits(32, 5, b->qs, u->q);
    moe_trits(16, 5, b->qs + 32, u->q + 160);
    moe_trits(4, 4, b->qh, u->q + 240);
    u->d = moe_load_half(&b->d);
}
