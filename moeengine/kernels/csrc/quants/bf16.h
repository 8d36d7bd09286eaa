/* BF16: one weight in 2 bytes, the upper half of a float. Oracle in tests: gguf.quants.BF16. */
typedef struct MOE_PACKED {
    uint8_t bytes[2];
} block_BF16;

MOE_INLINE float load_BF16(const void *row, size_t i) {
    return f32_from_bits((uint32_t)moe_load_u16((const uint8_t *)row + 2 * i) << 16);
}
