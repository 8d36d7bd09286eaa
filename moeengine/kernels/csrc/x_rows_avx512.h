/* AVX-512: activation rows; the numbers are those of quants/x_rows.h, bit for bit.
 *
 * Some types' weights come out of their unpacking in another order, with which activations are to be
 * multiplied. Within each 32 integers of a block_x_q8_K:
 *   MOE_X_Q8_K_A   byte 4*p + i                is integer 8*i + p                              p < 8, i < 4
 *   MOE_X_Q8_K_B   byte 16*h + 4*p + 2*k + i   is integer 16*h + 8*i + 4*k + p   h < 2, p < 4, k < 2, i < 2 */
#ifndef MOE_X_ROWS_AVX512_H
#define MOE_X_ROWS_AVX512_H
#include "quants/all.h"

MOE_INLINE __m512i moe_abs_bits(__m512 v) {
    return _mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(0x7fffffff));
}

/* v * scale, rounded to nearest even, of 16 values: int8. |v * scale| stays below 2^22. */
MOE_INLINE __m128i moe_round_16(__m512 v, __m512 scale) {
    return _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(v, scale)));
}

/* 64 integers of a block in the order of the format */
MOE_INLINE __m512i moe_order_64(const int format, __m512i q) {
    const __m512i a = _mm512_set_epi64(0x3f372f273e362e26, 0x3d352d253c342c24, 0x3b332b233a322a22, 0x3931292138302820,
                                       0x1f170f071e160e06, 0x1d150d051c140c04, 0x1b130b031a120a02, 0x1911090118100800);
    const __m512i b = _mm512_set_epi64(0x3f373b333e363a32, 0x3d3539313c343830, 0x2f272b232e262a22, 0x2d2529212c242820,
                                       0x1f171b131e161a12, 0x1d1519111c141810, 0x0f070b030e060a02, 0x0d0509010c040800);
    return format == MOE_X_Q8_K_A   ? _mm512_permutexvar_epi8(a, q)
           : format == MOE_X_Q8_K_B ? _mm512_permutexvar_epi8(b, q)
                                    : q;
}

/* 64 integers -> 4 sums of 16 */
MOE_INLINE void moe_sums_of_16(__m512i q, int16_t sum16[4]) {
    __m512i s = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), q);
    s = _mm512_add_epi32(s, _mm512_shuffle_epi32(s, 0x4e));
    s = _mm512_add_epi32(s, _mm512_shuffle_epi32(s, 0xb1));
    __m128i four = _mm512_castsi512_si128(_mm512_maskz_compress_epi32(0x1111, s));
    _mm_storel_epi64((void *)sum16, _mm_packs_epi32(four, four));
}

MOE_INLINE void moe_quantize_q8_K(const int format, size_t n, const float *x, void *y) {
    block_x_q8_K *out = y;
    for (size_t b = 0; b < n / 256; b++, x += 256, out++) {
        __m512i top = moe_abs_bits(_mm512_loadu_ps(x));
        for (size_t i = 16; i < 256; i += 16) top = _mm512_max_epu32(top, moe_abs_bits(_mm512_loadu_ps(x + i)));
        uint32_t max = _mm512_reduce_max_epu32(top);
        float iscale = 0;
        if (max != 0 && max < 0x7f800000) { /* the sign of the first value of that size counts */
            size_t first = 0;
            __mmask16 hit;
            for (;; first += 16) {
                hit = _mm512_cmpeq_epi32_mask(moe_abs_bits(_mm512_loadu_ps(x + first)), _mm512_set1_epi32((int)max));
                if (hit) break;
            }
            iscale = -127.0f / x[first + (size_t)__builtin_ctz(hit)];
        }
        if (iscale == 0 || !(iscale <= FLT_MAX && iscale >= -FLT_MAX)) {
            memset(out, 0, sizeof *out); /* all zero, too small to invert, or not finite */
            if (max >= 0x7f800000) out->d = NAN;
            continue;
        }
        const __m512 scale = _mm512_set1_ps(iscale);
        for (size_t i = 0; i < 256; i += 64) {
            __m512i q = _mm512_castsi128_si512(moe_round_16(_mm512_loadu_ps(x + i), scale));
            q = _mm512_inserti32x4(q, moe_round_16(_mm512_loadu_ps(x + i + 16), scale), 1);
            q = _mm512_inserti32x4(q, moe_round_16(_mm512_loadu_ps(x + i + 32), scale), 2);
            q = _mm512_inserti32x4(q, moe_round_16(_mm512_loadu_ps(x + i + 48), scale), 3);
            _mm512_store_si512(out->q + i, moe_order_64(format, q));
            moe_sums_of_16(q, out->sum16 + i / 16);
        }
        __m256i s = _mm256_madd_epi16(_mm256_load_si256((const void *)out->sum16), _mm256_set1_epi16(1));
        _mm_store_si128((void *)out->sum32, _mm256_cvtepi32_epi16(s));
        out->sum = _mm512_reduce_add_epi32(_mm512_zextsi256_si512(s));
        out->d = 1.0f / iscale;
        memset(out->unused, 0, sizeof out->unused);
    }
}

static void quantize_row_avx512_q8_K(size_t n, const float *x, void *y) { moe_quantize_q8_K(MOE_X_Q8_K, n, x, y); }
static void quantize_row_avx512_q8_K_a(size_t n, const float *x, void *y) { moe_quantize_q8_K(MOE_X_Q8_K_A, n, x, y); }
static void quantize_row_avx512_q8_K_b(size_t n, const float *x, void *y) { moe_quantize_q8_K(MOE_X_Q8_K_B, n, x, y); }

static void quantize_row_avx512_q8_0(size_t n, const float *x, void *y) {
    int8_t *q = y;
    float *d = (float *)(q + n), *s = d + n / 32;
    int32_t *sums = (int32_t *)(s + n / 32);
    for (size_t b = 0; b < n / 32; b++, x += 32, q += 32) {
        __m512 lo = _mm512_loadu_ps(x), hi = _mm512_loadu_ps(x + 16);
        uint32_t top = _mm512_reduce_max_epu32(_mm512_max_epu32(moe_abs_bits(lo), moe_abs_bits(hi)));
        float max = top < 0x7f800000 ? f32_from_bits(top) : NAN, inverse = 127.0f / max;
        int32_t sum = 0;
        if (!(inverse <= FLT_MAX)) { /* not finite, zero, or too small to invert */
            memset(q, 0, 32);
        } else {
            __m512 scale = _mm512_set1_ps(inverse);
            __m256i v = _mm256_set_m128i(moe_round_16(hi, scale), moe_round_16(lo, scale));
            _mm256_storeu_si256((void *)q, v);
            v = _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(1), v);
            sum = _mm512_reduce_add_epi32(_mm512_zextsi256_si512(v));
        }
        float scale = max / 127.0f;
        d[b] = moe_round_half(scale);
        s[b] = moe_round_half(scale * (float)sum);
        sums[b] = sum;
    }
}

#endif
