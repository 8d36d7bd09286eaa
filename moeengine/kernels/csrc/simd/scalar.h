/* The vocabulary of the float kernels, for any CPU: 16 floats as four vectors of four.
 *
 * simd/<isa>.h of every instruction set defines the same names with the same results, bit for bit
 * (except which NaN), so ops.h and attention.h are written once:
 *   v16_load, v16_store     unaligned; _n: only the first n (0..16) lanes, the others load as +0
 *   v16_load_f16, v16_store_f16   the same for F16, rounding to nearest even
 *   v16_madd  a*b+c, v16_nmadd  c-a*b    rounded once
 *   v16_max, v16_min        lane-wise a > b ? a : b  and  a < b ? a : b  (b where one is NaN)
 *   v16_first(n, a, b)      a in lanes < n (0..16), b in the others
 *   v16_scale2(p, n)        p * 2^n for whole n in -252..254, rounded once
 *   v16_even, v16_odd(a, b) the lanes 0, 2, ... or 1, 3, ... of a, then of b
 *   v16_dup_even, _dup_odd  lane i & ~1, lane i | 1;  v16_swap  lane i ^ 1
 *   v16_addsub              a - b in even lanes, a + b in odd ones
 *   v16_hsum                lane i + lane i+8, then +4, +2, +1
 *   v16_hmax                whether NaN lanes win is open
 *   f32_madd                one float, rounded once
 *   f16_from_f32, f32_from_f16   one number
 * MOE_SIMD_AVX2, MOE_SIMD_AVX512 and MOE_SIMD_FP16 are 0 or 1: what the instruction set has. */
#ifndef MOE_SIMD_H
#define MOE_SIMD_H
#include "base.h"
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#define MOE_SIMD_AVX2 0
#define MOE_SIMD_AVX512 0
#define MOE_SIMD_FP16 0

typedef float v4f __attribute__((vector_size(16), may_alias));
typedef int32_t v4i __attribute__((vector_size(16), may_alias));
typedef struct v16f {
    v4f q[4];
} v16f;

#if defined(__FP_FAST_FMAF) || defined(__ARM_FEATURE_FMA)
#define MOE_HAS_FMA 1
MOE_INLINE float f32_madd(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
#elif defined(__SSE2__)
/* a*b is exact in double. The sum is rounded to odd there, so that rounding it to float gives what
 * one rounding would (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008). */
MOE_INLINE __m128d v2_madd_odd(__m128d a, __m128d b, __m128d c) {
    const __m128d zero = _mm_setzero_pd();
    const __m128i one = _mm_set1_epi64x(1);
    __m128d p = _mm_mul_pd(a, b), s = _mm_add_pd(p, c), t = _mm_sub_pd(s, p);
    __m128d e = _mm_add_pd(_mm_sub_pd(p, _mm_sub_pd(s, t)), _mm_sub_pd(c, t));
    /* s + e is exact: an even s goes one step to the side of e; not where e is 0 or NaN */
    __m128i up = _mm_castpd_si128(_mm_cmpgt_pd(e, zero));
    __m128i inexact = _mm_or_si128(up, _mm_castpd_si128(_mm_cmplt_pd(e, zero)));
    __m128i negative = _mm_castpd_si128(_mm_cmplt_pd(s, zero));
    __m128i to_zero = _mm_andnot_si128(_mm_xor_si128(up, negative), inexact);
    __m128i step = _mm_or_si128(to_zero, _mm_srli_epi64(inexact, 63)); /* -1, +1 or 0 */
    __m128i bits = _mm_castpd_si128(s);
    __m128i even = _mm_sub_epi64(_mm_and_si128(bits, one), one);
    return _mm_castsi128_pd(_mm_add_epi64(bits, _mm_and_si128(step, even)));
}
MOE_INLINE float f32_madd(float a, float b, float c) {
    __m128d s = v2_madd_odd(_mm_set_sd(a), _mm_set_sd(b), _mm_set_sd(c));
    return (float)_mm_cvtsd_f64(s);
}
#else
MOE_INLINE float f32_madd(float a, float b, float c) {
    double p = (double)a * b, s = p + c, t = s - p, e = (p - (s - t)) + (c - t);
    int64_t bits;
    memcpy(&bits, &s, 8);
    if ((e > 0 || e < 0) && !(bits & 1)) bits += (e > 0) == (s > 0) ? 1 : -1;
    memcpy(&s, &bits, 8);
    return (float)s;
}
#endif

MOE_INLINE v4f v4_madd(v4f a, v4f b, v4f c) {
#if defined(__SSE2__) && !defined(MOE_HAS_FMA)
    __m128 ah = _mm_movehl_ps(a, a), bh = _mm_movehl_ps(b, b), ch = _mm_movehl_ps(c, c);
    __m128d lo = v2_madd_odd(_mm_cvtps_pd(a), _mm_cvtps_pd(b), _mm_cvtps_pd(c));
    __m128d hi = v2_madd_odd(_mm_cvtps_pd(ah), _mm_cvtps_pd(bh), _mm_cvtps_pd(ch));
    return _mm_movelh_ps(_mm_cvtpd_ps(lo), _mm_cvtpd_ps(hi));
#else
    return (v4f){f32_madd(a[0], b[0], c[0]), f32_madd(a[1], b[1], c[1]),
                 f32_madd(a[2], b[2], c[2]), f32_madd(a[3], b[3], c[3])};
#endif
}

MOE_INLINE float f32_from_f16(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, mag = h & 0x7fff;
    if (mag > 0x7c00) return f32_from_bits(sign | 0x7fc00000 | mag << 13);
    if (mag == 0x7c00) return f32_from_bits(sign | 0x7f800000);
    if (mag >= 0x400) return f32_from_bits(sign | ((mag << 13) + (112u << 23)));
    return f32_from_bits(sign | f32_bits((float)mag * 0x1p-24f));
}
MOE_INLINE uint16_t f16_from_f32(float f) {
    uint32_t u = f32_bits(f), sign = u >> 16 & 0x8000, mag = u & 0x7fffffff;
    if (mag > 0x7f800000) return (uint16_t)(sign | 0x7e00 | (mag >> 13 & 0x3ff));
    if (mag >= 0x477ff000) return (uint16_t)(sign | 0x7c00); /* 65520 and above: infinity */
    if (mag < 0x38800000) { /* below 2^-14: adding 0.5 leaves the rounded count of 2^-24 */
        return (uint16_t)(sign | (f32_bits(f32_from_bits(mag) + 0.5f) - 0x3f000000));
    }
    return (uint16_t)(sign | (mag - (112u << 23) + 0xfff + (mag >> 13 & 1)) >> 13);
}

MOE_INLINE v16f v16_set1(float x) {
    v4f v = {x, x, x, x};
    return (v16f){{v, v, v, v}};
}
MOE_INLINE v16f v16_zero(void) { return v16_set1(0.0f); }
MOE_INLINE v16f v16_load(const float *p) {
    v16f r;
    memcpy(&r, p, sizeof r);
    return r;
}
MOE_INLINE void v16_store(float *p, v16f a) { memcpy(p, &a, sizeof a); }
MOE_INLINE v16f v16_load_n(const float *p, size_t n) {
    float t[16] = {0};
    for (size_t i = 0; i < n; i++) t[i] = p[i];
    return v16_load(t);
}
MOE_INLINE void v16_store_n(float *p, v16f a, size_t n) {
    float t[16];
    v16_store(t, a);
    for (size_t i = 0; i < n; i++) p[i] = t[i];
}
MOE_INLINE v16f v16_load_f16_n(const uint16_t *p, size_t n) {
    float t[16] = {0};
    for (size_t i = 0; i < n; i++) t[i] = f32_from_f16(p[i]);
    return v16_load(t);
}
MOE_INLINE v16f v16_load_f16(const uint16_t *p) { return v16_load_f16_n(p, 16); }
MOE_INLINE void v16_store_f16_n(uint16_t *p, v16f a, size_t n) {
    float t[16];
    v16_store(t, a);
    for (size_t i = 0; i < n; i++) p[i] = f16_from_f32(t[i]);
}
MOE_INLINE void v16_store_f16(uint16_t *p, v16f a) { v16_store_f16_n(p, a, 16); }

/* rounded to F16 and back, to nearest even */
MOE_INLINE v16f v16_round_f16(v16f a) {
    uint16_t h[16];
    v16_store_f16(h, a);
    return v16_load_f16(h);
}

/* a * b + c with one rounding, to F16, for values of F16 precision. */
MOE_INLINE v16f v16_madd_f16(v16f a, v16f b, v16f c) {
    float x[16], y[16], z[16];
    v16_store(x, a);
    v16_store(y, b);
    v16_store(z, c);
    v16_madd_odd(x, y, z);
    return v16_round_f16(v16_load(z));
}

MOE_INLINE v16f v16_add(v16f a, v16f b) {
    for (int i = 0; i < 4; i++) a.q[i] += b.q[i];
    return a;
}
MOE_INLINE v16f v16_sub(v16f a, v16f b) {
    for (int i = 0; i < 4; i++) a.q[i] -= b.q[i];
    return a;
}
MOE_INLINE v16f v16_mul(v16f a, v16f b) {
    for (int i = 0; i < 4; i++) a.q[i] *= b.q[i];
    return a;
}
MOE_INLINE v16f v16_div(v16f a, v16f b) {
    for (int i = 0; i < 4; i++) a.q[i] /= b.q[i];
    return a;
}
MOE_INLINE v16f v16_madd(v16f a, v16f b, v16f c) {
    for (int i = 0; i < 4; i++) c.q[i] = v4_madd(a.q[i], b.q[i], c.q[i]);
    return c;
}
MOE_INLINE v16f v16_nmadd(v16f a, v16f b, v16f c) {
    for (int i = 0; i < 4; i++) c.q[i] = v4_madd(-a.q[i], b.q[i], c.q[i]);
    return c;
}
MOE_INLINE v4f v4_select(v4i m, v4f a, v4f b) { return (v4f)((m & (v4i)a) | (~m & (v4i)b)); }
MOE_INLINE v16f v16_max(v16f a, v16f b) {
    for (int i = 0; i < 4; i++) a.q[i] = v4_select(a.q[i] > b.q[i], a.q[i], b.q[i]);
    return a;
}
MOE_INLINE v16f v16_min(v16f a, v16f b) {
    for (int i = 0; i < 4; i++) a.q[i] = v4_select(a.q[i] < b.q[i], a.q[i], b.q[i]);
    return a;
}
MOE_INLINE v16f v16_first(size_t n, v16f a, v16f b) {
    const v4i lane = {0, 1, 2, 3};
    for (int i = 0; i < 4; i++) a.q[i] = v4_select(lane < (int32_t)n - 4 * i, a.q[i], b.q[i]);
    return a;
}
MOE_INLINE v16f v16_scale2(v16f p, v16f n) {
    for (int i = 0; i < 4; i++) {
        /* the low bits of n + 1.5 * 2^23 are n; two powers, since one may not be a float */
        v4i k = (v4i)(n.q[i] + 0x1.8p23f) - 0x4b400000, h = k >> 1;
        p.q[i] = p.q[i] * (v4f)((h + 127) << 23) * (v4f)((k - h + 127) << 23);
    }
    return p;
}
MOE_INLINE v16f v16_even(v16f a, v16f b) {
    v16f y;
    for (int i = 0; i < 4; i++) {
        const v4f *x = i < 2 ? a.q + 2 * i : b.q + 2 * (i - 2);
        y.q[i] = (v4f){x[0][0], x[0][2], x[1][0], x[1][2]};
    }
    return y;
}
MOE_INLINE v16f v16_odd(v16f a, v16f b) {
    v16f y;
    for (int i = 0; i < 4; i++) {
        const v4f *x = i < 2 ? a.q + 2 * i : b.q + 2 * (i - 2);
        y.q[i] = (v4f){x[0][1], x[0][3], x[1][1], x[1][3]};
    }
    return y;
}
MOE_INLINE v16f v16_dup_even(v16f a) {
    for (int i = 0; i < 4; i++) a.q[i] = (v4f){a.q[i][0], a.q[i][0], a.q[i][2], a.q[i][2]};
    return a;
}
MOE_INLINE v16f v16_dup_odd(v16f a) {
    for (int i = 0; i < 4; i++) a.q[i] = (v4f){a.q[i][1], a.q[i][1], a.q[i][3], a.q[i][3]};
    return a;
}
MOE_INLINE v16f v16_swap(v16f a) {
    for (int i = 0; i < 4; i++) a.q[i] = (v4f){a.q[i][1], a.q[i][0], a.q[i][3], a.q[i][2]};
    return a;
}
MOE_INLINE v16f v16_addsub(v16f a, v16f b) {
    const v4i flip = {INT32_MIN, 0, INT32_MIN, 0};
    for (int i = 0; i < 4; i++) a.q[i] += (v4f)((v4i)b.q[i] ^ flip);
    return a;
}
MOE_INLINE float v16_hsum(v16f a) {
    v4f s = (a.q[0] + a.q[2]) + (a.q[1] + a.q[3]);
    return (s[0] + s[2]) + (s[1] + s[3]);
}
MOE_INLINE float v16_hmax(v16f a) {
    float t[16];
    v16_store(t, a);
    float m = t[0];
    for (int i = 1; i < 16; i++) m = t[i] > m ? t[i] : m;
    return m;
}
#endif
