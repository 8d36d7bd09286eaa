/* F32: one weight in 4 bytes, little-endian float. Oracle in tests: numpy. */
typedef struct MOE_PACKED {
    uint8_t bytes[4];
} block_F32;

/* weights k .. k+n-1 of a row in the first n (0 .. 16) lanes, the others 0 */
MOE_INLINE v16f load16_F32(const void *row, size_t k, size_t n) {
    if (n == 16) return v16_load((const float *)((const uint8_t *)row + 4 * k));
    float lane[16] = {0};
    memcpy(lane, (const uint8_t *)row + 4 * k, 4 * n);
    return v16_load(lane);
}
