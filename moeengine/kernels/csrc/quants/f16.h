/* F16: one weight in 2 bytes, IEEE half. Oracle in tests: numpy. */
typedef struct MOE_PACKED {
    uint8_t bytes[2];
} block_F16;

MOE_INLINE float load_F16(const void *row, size_t i) { return moe_load_half((const uint8_t *)row + 2 * i); }
