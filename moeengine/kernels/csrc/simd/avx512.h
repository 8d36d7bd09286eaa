/* The vocabulary of simd/scalar.h on AVX-512: 16 floats are one register. */
#ifndef MOE_SIMD_H
#define MOE_SIMD_H
#include <immintrin.h>

#include "base.h"

#define MOE_SIMD_AVX2 1
#define MOE_SIMD_AVX512 1
#ifndef MOE_SIMD_FP16 /* attention_fp16.c sets it to 1 */
#define MOE_SIMD_FP16 0
#endif

typedef __m512 v16f;

MOE_INLINE float f32_madd(float a, float b, float c) {
    return _mm_cvtss_f32(_mm_fmadd_ss(_mm_set_ss(a), _mm_set_ss(b), _mm_set_ss(c)));
}
MOE_INLINE float f32_from_f16(uint16_t h) {
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(h)));
}
MOE_INLINE uint16_t f16_from_f32(float f) {
    return (uint16_t)_mm_cvtsi128_si32(_mm_cvtps_ph(_mm_set_ss(f), _MM_FROUND_TO_NEAREST_INT));
}

MOE_INLINE __mmask16 v16_mask(size_t n) { return (__mmask16)_bzhi_u32(0xffff, (unsigned)n); }

MOE_INLINE v16f v16_set1(float x) { return _mm512_set1_ps(x); }
MOE_INLINE v16f v16_zero(void) { return _mm512_setzero_ps(); }
MOE_INLINE v16f v16_load(const float *p) { return _mm512_loadu_ps(p); }
MOE_INLINE void v16_store(float *p, v16f a) { _mm512_storeu_ps(p, a); }
MOE_INLINE v16f v16_load_n(const float *p, size_t n) {
    return _mm512_maskz_loadu_ps(v16_mask(n), p);
}
MOE_INLINE void v16_store_n(float *p, v16f a, size_t n) {
    _mm512_mask_storeu_ps(p, v16_mask(n), a);
}
MOE_INLINE v16f v16_load_f16(const uint16_t *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}
MOE_INLINE void v16_store_f16(uint16_t *p, v16f a) {
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}
MOE_INLINE v16f v16_load_f16_n(const uint16_t *p, size_t n) {
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(v16_mask(n), p));
}
MOE_INLINE void v16_store_f16_n(uint16_t *p, v16f a, size_t n) {
    __m256i h = _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT);
    _mm256_mask_storeu_epi16(p, v16_mask(n), h);
}

/* rounded to F16 and back, to nearest even */
MOE_INLINE v16f v16_round_f16(v16f a) {
    return _mm512_cvtph_ps(_mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}
/* a * b + c with one rounding, to F16, for values of F16 precision. The float32 sum is first rounded
 * to odd (its last bit says that something was cut off), so that the second rounding cannot err. */
MOE_INLINE v16f v16_madd_f16(v16f a, v16f b, v16f c) {
    /* of two neighbours one is odd; they are the same where nothing is cut off */
    v16f below = _mm512_fmadd_round_ps(a, b, c, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    v16f above = _mm512_fmadd_round_ps(a, b, c, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC);
    __mmask16 odd = _mm512_test_epi32_mask(_mm512_castps_si512(below), _mm512_set1_epi32(1));
    return v16_round_f16(_mm512_mask_blend_ps(odd, above, below));
}

MOE_INLINE v16f v16_add(v16f a, v16f b) { return _mm512_add_ps(a, b); }
MOE_INLINE v16f v16_sub(v16f a, v16f b) { return _mm512_sub_ps(a, b); }
MOE_INLINE v16f v16_mul(v16f a, v16f b) { return _mm512_mul_ps(a, b); }
MOE_INLINE v16f v16_div(v16f a, v16f b) { return _mm512_div_ps(a, b); }
MOE_INLINE v16f v16_madd(v16f a, v16f b, v16f c) { return _mm512_fmadd_ps(a, b, c); }
MOE_INLINE v16f v16_nmadd(v16f a, v16f b, v16f c) { return _mm512_fnmadd_ps(a, b, c); }
MOE_INLINE v16f v16_max(v16f a, v16f b) { return _mm512_max_ps(a, b); }
MOE_INLINE v16f v16_min(v16f a, v16f b) { return _mm512_min_ps(a, b); }
MOE_INLINE v16f v16_first(size_t n, v16f a, v16f b) {
    return _mm512_mask_mov_ps(b, v16_mask(n), a);
}
MOE_INLINE v16f v16_scale2(v16f p, v16f n) { return _mm512_scalef_ps(p, n); }
MOE_INLINE v16f v16_even(v16f a, v16f b) {
    const __m512i lane = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    return _mm512_permutex2var_ps(a, lane, b);
}
MOE_INLINE v16f v16_odd(v16f a, v16f b) {
    const __m512i lane = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
    return _mm512_permutex2var_ps(a, lane, b);
}
MOE_INLINE v16f v16_dup_even(v16f a) { return _mm512_moveldup_ps(a); }
MOE_INLINE v16f v16_dup_odd(v16f a) { return _mm512_movehdup_ps(a); }
MOE_INLINE v16f v16_swap(v16f a) { return _mm512_permute_ps(a, _MM_SHUFFLE(2, 3, 0, 1)); }
MOE_INLINE v16f v16_addsub(v16f a, v16f b) {
    return _mm512_mask_sub_ps(_mm512_add_ps(a, b), 0x5555, a, b);
}
MOE_INLINE float v16_hsum(v16f a) {
    __m256 s = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}
MOE_INLINE float v16_hmax(v16f a) {
    __m256 s = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 q = _mm_max_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
    q = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
}
#endif
