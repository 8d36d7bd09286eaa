/* AVX-512: activation rows. MOE_X_Q8_0 rows are those of quants/x_rows.h; a MOE_X_Q8_K block has two
 * permuted copies of its integers more, for types whose unpacked weights come out in another order. The
 * numbers are those of quants/x_rows.h, bit for bit. */
#ifndef MOE_X_ROWS_AVX512_H
#define MOE_X_ROWS_AVX512_H
#include "quants/all.h"

typedef struct block_x_avx512 {
    float d;
    int32_t sum; /* of all 256 */
    int32_t unused[2];
    int16_t sum32[8], sum16[16];
    int8_t q[256];
    int8_t planes32[256]; /* byte 32*g + 4*p + i is q[32*g + 8*i + p], p < 8, i < 4 */
    int8_t planes16[256]; /* byte 16*g + 4*p + i is q[16*g + 8*(i%2) + 4*(i/2) + p], p < 4, i < 4 */
} block_x_avx512;
_Static_assert(sizeof(block_x_avx512) == 832, "rows of block_x_avx512 stay 64-byte aligned");

#define MOE_ORDER_PLAIN offsetof(block_x_avx512, q)
#define MOE_ORDER_PLANES32 offsetof(block_x_avx512, planes32)
#define MOE_ORDER_PLANES16 offsetof(block_x_avx512, planes16)

MOE_INLINE __m512i moe_abs_bits(__m512 v) {
    return _mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(0x7fffffff));
}

/* v * scale, rounded to nearest even, of 16 values: int8. |v * scale| stays below 2^22. */
MOE_INLINE __m128i moe_round_16(__m512 v, __m512 scale) {
    return _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(v, scale)));
}

/* 64 integers -> their two permuted copies and 4 sums of 16 */
MOE_INLINE void moe_permute_and_sum(block_x_avx512 *out, size_t i) {
    const __m512i planes32 = _mm512_set_epi64(
        0x3f372f273e362e26, 0x3d352d253c342c24, 0x3b332b233a322a22, 0x3931292138302820,
        0x1f170f071e160e06, 0x1d150d051c140c04, 0x1b130b031a120a02, 0x1911090118100800);
    const __m512i planes16 = _mm512_set_epi64(
        0x3f373b333e363a32, 0x3d3539313c343830, 0x2f272b232e262a22, 0x2d2529212c242820,
        0x1f171b131e161a12, 0x1d1519111c141810, 0x0f070b030e060a02, 0x0d0509010c040800);
    __m512i q = _mm512_load_si512(out->q + i);
    _mm512_store_si512(out->planes32 + i, _mm512_permutexvar_epi8(planes32, q));
    _mm512_store_si512(out->planes16 + i, _mm512_permutexvar_epi8(planes16, q));
    __m512i s = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), q);
    s = _mm512_add_epi32(s, _mm512_shuffle_epi32(s, 0x4e));
    s = _mm512_add_epi32(s, _mm512_shuffle_epi32(s, 0xb1));
    __m128i four = _mm512_castsi512_si128(_mm512_maskz_compress_epi32(0x1111, s));
    _mm_storel_epi64((void *)(out->sum16 + i / 16), _mm_packs_epi32(four, four));
}

static void quantize_row_avx512_q8_K(size_t n, const float *x, void *y) {
    block_x_avx512 *out = y;
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
        for (size_t i = 0; i < 256; i += 64) {
            for (size_t k = i; k < i + 64; k += 16)
                _mm_store_si128((void *)(out->q + k), moe_round_16(_mm512_loadu_ps(x + k), _mm512_set1_ps(iscale)));
            moe_permute_and_sum(out, i);
        }
        __m256i s = _mm256_madd_epi16(_mm256_load_si256((const void *)out->sum16), _mm256_set1_epi16(1));
        _mm_store_si128((void *)out->sum32, _mm256_cvtepi32_epi16(s));
        out->sum = _mm512_reduce_add_epi32(_mm512_zextsi256_si512(s));
        out->d = 1.0f / iscale;
        memset(out->unused, 0, sizeof out->unused);
    }
}

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
