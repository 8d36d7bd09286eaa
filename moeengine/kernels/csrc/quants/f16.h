/* F16: one weight in 2 bytes, IEEE half. Oracle in tests: numpy. */
typedef struct MOE_PACKED {
    uint8_t bytes[2];
} block_F16;

/* weights k .. k+n-1 of a row in the first n (0 .. 16) lanes, the others 0 */
MOE_INLINE v16f load16_F16(const void *row, size_t k, size_t n) {
#if MOE_SIMD_AVX2
    if (n == 16) return v16_load_f16((const uint16_t *)((const uint8_t *)row + 2 * k));
#endif
    uint16_t lane[16] = {0};
    memcpy(lane, (const uint8_t *)row + 2 * k, 2 * n);
    return v16_load_f16(lane);
}
