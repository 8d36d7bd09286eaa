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

/* a * b + c for values of F16 precision, rounded to float32 *to odd*: the last bit says that something was
 * cut off, so that rounding to F16 afterwards cannot err. */
MOE_INLINE float f32_madd_odd(float a, float b, float c) {
    float p = a * b, s = p + c, bb = s - p, cut = (p - (s - bb)) + (c - bb);
    if (!(s - s == 0.0f)) return s;
    uint32_t u = f32_bits(s), inexact = cut != 0.0f;
    u -= inexact & ((f32_bits(cut) ^ u) >> 31);
    return f32_from_bits(u | inexact);
}

/* of 16 lanes */
static __attribute__((noinline, unused)) void v16_madd_odd(const float *a, const float *b, float *c) {
    for (int i = 0; i < 16; i++) c[i] = f32_madd_odd(a[i], b[i], c[i]);
}
#endif
