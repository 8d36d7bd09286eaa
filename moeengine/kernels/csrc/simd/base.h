/* What every simd/<isa>.h starts from. */
#ifndef MOE_SIMD_BASE_H
#define MOE_SIMD_BASE_H
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define MOE_INLINE static inline __attribute__((always_inline, unused))

MOE_INLINE float f32_from_bits(uint32_t u) {
    float f;
    memcpy(&f, &u, 4);
    return f;
}
MOE_INLINE uint32_t f32_bits(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}
#endif
