/* The vocabulary of simd/scalar.h on AVX2, FMA and F16C: 16 floats are two registers. */
#ifndef MOE_SIMD_H
#define MOE_SIMD_H
#include <immintrin.h>

#include "base.h"

#define MOE_SIMD_AVX2 1
#define MOE_SIMD_AVX512 0
#define MOE_SIMD_FP16 0

typedef struct v16f {
    __m256 lo, hi;
} v16f;

MOE_INLINE float f32_madd(float a, float b, float c) {
    return _mm_cvtss_f32(_mm_fmadd_ss(_mm_set_ss(a), _mm_set_ss(b), _mm_set_ss(c)));
}
MOE_INLINE float f32_from_f16(uint16_t h) {
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(h)));
}
MOE_INLINE uint16_t f16_from_f32(float f) {
    return (uint16_t)_mm_cvtsi128_si32(_mm_cvtps_ph(_mm_set_ss(f), _MM_FROUND_TO_NEAREST_INT));
}

/* The mask of n lanes starts at entry 8 - n. */
static const int32_t v8_mask_table[16] = {-1, -1, -1, -1, -1, -1, -1, -1};
MOE_INLINE __m256i v8_mask_lo(size_t n) {
    return _mm256_loadu_si256((const __m256i *)(v8_mask_table + (n < 8 ? 8 - n : 0)));
}
MOE_INLINE __m256i v8_mask_hi(size_t n) {
    return _mm256_loadu_si256((const __m256i *)(v8_mask_table + (n > 8 ? 16 - n : 8)));
}

MOE_INLINE v16f v16_set1(float x) { return (v16f){_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
MOE_INLINE v16f v16_zero(void) { return (v16f){_mm256_setzero_ps(), _mm256_setzero_ps()}; }
MOE_INLINE v16f v16_load(const float *p) {
    return (v16f){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
MOE_INLINE void v16_store(float *p, v16f a) {
    _mm256_storeu_ps(p, a.lo);
    _mm256_storeu_ps(p + 8, a.hi);
}
MOE_INLINE v16f v16_load_n(const float *p, size_t n) {
    return (v16f){_mm256_maskload_ps(p, v8_mask_lo(n)), _mm256_maskload_ps(p + 8, v8_mask_hi(n))};
}
MOE_INLINE void v16_store_n(float *p, v16f a, size_t n) {
    _mm256_maskstore_ps(p, v8_mask_lo(n), a.lo);
    _mm256_maskstore_ps(p + 8, v8_mask_hi(n), a.hi);
}
MOE_INLINE v16f v16_load_f16(const uint16_t *p) {
    return (v16f){_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)),
                  _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 8)))};
}
MOE_INLINE void v16_store_f16(uint16_t *p, v16f a) {
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128((__m128i *)(p + 8), _mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT));
}
MOE_INLINE v16f v16_load_f16_n(const uint16_t *p, size_t n) {
    uint16_t t[16] = {0};
    for (size_t i = 0; i < n; i++) t[i] = p[i];
    return v16_load_f16(t);
}
MOE_INLINE void v16_store_f16_n(uint16_t *p, v16f a, size_t n) {
    uint16_t t[16];
    v16_store_f16(t, a);
    for (size_t i = 0; i < n; i++) p[i] = t[i];
}

/* rounded to F16 and back, to nearest even */
MOE_INLINE v16f v16_round_f16(v16f a) {
    return (v16f){_mm256_cvtph_ps(_mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT)),
                  _mm256_cvtph_ps(_mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT))};
}

/* lanes that may lie halfway between two F16 values */
MOE_INLINE __m256i v8_halfway_f16(__m256 s) {
    __m256i u = _mm256_castps_si256(s), size = _mm256_and_si256(u, _mm256_set1_epi32(0x7fffffff));
    __m256i halfway = _mm256_cmpeq_epi32(_mm256_and_si256(u, _mm256_set1_epi32(0x1fff)), _mm256_set1_epi32(0x1000));
    return _mm256_or_si256(halfway, _mm256_cmpgt_epi32(_mm256_set1_epi32(0x38800000), size));
}
/* a * b + c with one rounding, to F16, for values of F16 precision. Rounding the float32 sum again errs only
 * where that lies halfway between two F16 values, which for normal ones its last 13 bits tell. */
MOE_INLINE v16f v16_madd_f16(v16f a, v16f b, v16f c) {
    v16f s = {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
    __m256i halfway = _mm256_or_si256(v8_halfway_f16(s.lo), v8_halfway_f16(s.hi));
    if (__builtin_expect(_mm256_testz_si256(halfway, halfway), 1)) return v16_round_f16(s);
    float x[16], y[16], z[16];
    v16_store(x, a);
    v16_store(y, b);
    v16_store(z, c);
    v16_madd_odd(x, y, z);
    return v16_round_f16(v16_load(z));
}

MOE_INLINE v16f v16_add(v16f a, v16f b) {
    return (v16f){_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
MOE_INLINE v16f v16_sub(v16f a, v16f b) {
    return (v16f){_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}
MOE_INLINE v16f v16_mul(v16f a, v16f b) {
    return (v16f){_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
MOE_INLINE v16f v16_div(v16f a, v16f b) {
    return (v16f){_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}
MOE_INLINE v16f v16_madd(v16f a, v16f b, v16f c) {
    return (v16f){_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
MOE_INLINE v16f v16_nmadd(v16f a, v16f b, v16f c) {
    return (v16f){_mm256_fnmadd_ps(a.lo, b.lo, c.lo), _mm256_fnmadd_ps(a.hi, b.hi, c.hi)};
}
MOE_INLINE v16f v16_max(v16f a, v16f b) {
    return (v16f){_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}
MOE_INLINE v16f v16_min(v16f a, v16f b) {
    return (v16f){_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
}
MOE_INLINE v16f v16_first(size_t n, v16f a, v16f b) {
    return (v16f){_mm256_blendv_ps(b.lo, a.lo, _mm256_castsi256_ps(v8_mask_lo(n))),
                  _mm256_blendv_ps(b.hi, a.hi, _mm256_castsi256_ps(v8_mask_hi(n)))};
}
MOE_INLINE __m256 v8_scale2(__m256 p, __m256 n) { /* two powers, since one may not be a float */
    __m256i k = _mm256_cvtps_epi32(n), h = _mm256_srai_epi32(k, 1), bias = _mm256_set1_epi32(127);
    __m256i e0 = _mm256_slli_epi32(_mm256_add_epi32(h, bias), 23);
    __m256i e1 = _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(k, h), bias), 23);
    return _mm256_mul_ps(_mm256_mul_ps(p, _mm256_castsi256_ps(e0)), _mm256_castsi256_ps(e1));
}
MOE_INLINE v16f v16_scale2(v16f p, v16f n) {
    return (v16f){v8_scale2(p.lo, n.lo), v8_scale2(p.hi, n.hi)};
}
/* shuffle_ps works in 128-bit halves: the 64-bit pieces come as 0, 2, 1, 3 */
#define V8_UNZIP(a, lanes)                                                                    \
    _mm256_castpd_ps(_mm256_permute4x64_pd(                                                   \
        _mm256_castps_pd(_mm256_shuffle_ps((a).lo, (a).hi, lanes)), _MM_SHUFFLE(3, 1, 2, 0)))
MOE_INLINE v16f v16_even(v16f a, v16f b) {
    return (v16f){V8_UNZIP(a, _MM_SHUFFLE(2, 0, 2, 0)), V8_UNZIP(b, _MM_SHUFFLE(2, 0, 2, 0))};
}
MOE_INLINE v16f v16_odd(v16f a, v16f b) {
    return (v16f){V8_UNZIP(a, _MM_SHUFFLE(3, 1, 3, 1)), V8_UNZIP(b, _MM_SHUFFLE(3, 1, 3, 1))};
}
MOE_INLINE v16f v16_dup_even(v16f a) {
    return (v16f){_mm256_moveldup_ps(a.lo), _mm256_moveldup_ps(a.hi)};
}
MOE_INLINE v16f v16_dup_odd(v16f a) {
    return (v16f){_mm256_movehdup_ps(a.lo), _mm256_movehdup_ps(a.hi)};
}
MOE_INLINE v16f v16_swap(v16f a) {
    return (v16f){_mm256_permute_ps(a.lo, _MM_SHUFFLE(2, 3, 0, 1)),
                  _mm256_permute_ps(a.hi, _MM_SHUFFLE(2, 3, 0, 1))};
}
MOE_INLINE v16f v16_addsub(v16f a, v16f b) {
    return (v16f){_mm256_addsub_ps(a.lo, b.lo), _mm256_addsub_ps(a.hi, b.hi)};
}
MOE_INLINE float v16_hsum(v16f a) {
    __m256 s = _mm256_add_ps(a.lo, a.hi);
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}
MOE_INLINE float v16_hmax(v16f a) {
    __m256 s = _mm256_max_ps(a.lo, a.hi);
    __m128 q = _mm_max_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
    q = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
}
#endif
