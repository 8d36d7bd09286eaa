/* BF16: one weight in 2 bytes, the upper half of a float. Oracle in tests: gguf.quants.BF16. */
typedef struct MOE_PACKED {
    uint8_t bytes[2];
} block_BF16;

typedef uint16_t moe_v16u16 __attribute__((vector_size(32)));
typedef uint32_t moe_v16u32 __attribute__((vector_size(64)));

/* weights k .. k+n-1 of a row in the first n (0 .. 16) lanes, the others 0 */
MOE_INLINE v16f load16_BF16(const void *row, size_t k, size_t n) {
    moe_v16u16 half = {0};
    memcpy(&half, (const uint8_t *)row + 2 * k, 2 * n);
    moe_v16u32 bits = __builtin_convertvector(half, moe_v16u32) << 16;
    v16f value;
    memcpy(&value, &bits, 64);
    return value;
}

/* n (0 .. 32) elements, two a lane; the others 0 */
MOE_INLINE moe_v16u32 bf16_pairs(const uint8_t *p, size_t n) {
    moe_v16u32 pairs = {0};
    if (n == 32) memcpy(&pairs, p, 64);
    else memcpy(&pairs, p, 2 * n);
    return pairs;
}
MOE_INLINE v16f bf16_odd(const uint8_t *p, size_t n) {
    moe_v16u32 bits = bf16_pairs(p, n) & 0xffff0000;
    v16f value;
    memcpy(&value, &bits, 64);
    return value;
}
MOE_INLINE v16f bf16_even(const uint8_t *p, size_t n) {
    moe_v16u32 bits = bf16_pairs(p, n) << 16;
    v16f value;
    memcpy(&value, &bits, 64);
    return value;
}
/* acc + products of neighbours, the odd ones first */
MOE_INLINE v16f bf16_add_products(const uint8_t *w, const uint8_t *x, size_t n, v16f acc) {
    return v16_madd(bf16_even(w, n), bf16_even(x, n), v16_madd(bf16_odd(w, n), bf16_odd(x, n), acc));
}
