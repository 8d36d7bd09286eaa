/* F32: one weight in 4 bytes, little-endian float. Oracle in tests: numpy. */
typedef struct MOE_PACKED {
    uint8_t bytes[4];
} block_F32;

MOE_INLINE float load_F32(const void *row, size_t i) {
    return f32_from_bits(moe_load_u32((const uint8_t *)row + 4 * i));
}
