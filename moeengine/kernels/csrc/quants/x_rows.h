/* Activation rows as the weight types want them (moe_x): layouts and quantizers.
 *
 * MOE_X_F32, _F16          float32 values, rounded to the type
 * MOE_X_BF16               the upper halves of float32 values, rounded to nearest even
 * MOE_X_Q8_K               one block_x_q8_K for 256 values; 64-byte aligned
 * MOE_X_Q8_0               a row of n values is four arrays, one after another:
 *                            int8  q[n]      32 a block
 *                            float d[n/32]   scale, rounded to fp16
 *                            float s[n/32]   fp16(scale before rounding * sum of q), for types with
 * a min int32 sum[n/32] sum of q
 *
 * The integers and scales are those of llama.cpp: quantize_row_q8_K_ref (ggml-quants.c),
 * quantize_row_q8_0 and quantize_row_q8_1 (ggml-cpu/arch/x86/quants.c, AVX2 branch). Where a block
 * holds a value that is not finite, its integers are 0 and its scale is NaN, so that the product is
 * NaN. */
#ifndef MOE_QUANTS_X_ROWS_H
#define MOE_QUANTS_X_ROWS_H
#include <float.h>

#include "block.h"

typedef struct block_x_q8_K {
    float d;
    int32_t sum; /* of all 256; only where an instruction set's kernels need it */
    int32_t unused[2];
    int16_t sum32[8];  /* sums of 32 */
    int16_t sum16[16]; /* sums of 16 */
    int8_t q[256];
} block_x_q8_K;
_Static_assert(sizeof(block_x_q8_K) == 320, "rows of block_x_q8_K stay 64-byte aligned");

typedef struct moe_x_q8_0 { /* where the four arrays of a MOE_X_Q8_0 row are */
    const int8_t *q;
    const float *d, *s;
    const int32_t *sum;
} moe_x_q8_0;
#define MOE_X_Q8_0_BYTES 44 /* a block of 32, over the four arrays */

MOE_INLINE moe_x_q8_0 moe_x_q8_0_at(size_t n, const void *row) {
    const int8_t *q = row;
    const float *d = (const float *)(q + n);
    return (moe_x_q8_0){q, d, d + n / 32, (const int32_t *)(d + n / 32 * 2)};
}

/* v rounded to the nearest integer, ties to even; |v| < 2^22. Done by the float adder, so that it
 * is the same with and without a rounding instruction. */
MOE_INLINE int32_t moe_round(float v) {
    return (int32_t)(f32_bits(v + 0x1.8p23f) - f32_bits(0x1.8p23f));
}

/* largest bits of |x[i]|, i < n: ordered as integers, infinity and NaN above all numbers */
MOE_INLINE uint32_t moe_max_abs_bits(size_t n, const float *x) {
    uint32_t top = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = f32_bits(x[i]) & 0x7fffffff;
        top = bits > top ? bits : top;
    }
    return top;
}

__attribute__((unused)) static void quantize_row_q8_K(size_t n, const float *x, void *y) {
    block_x_q8_K *out = y;
    for (size_t b = 0; b < n / 256; b++, x += 256, out++) {
        uint32_t top = moe_max_abs_bits(256, x);
        memset(out, 0, sizeof *out);
        if (top == 0) continue;
        if (top >= 0x7f800000) {
            out->d = NAN;
            continue;
        }
        size_t first = 0; /* the sign of the first value of that size counts */
        while ((f32_bits(x[first]) & 0x7fffffff) != top) first++;
        float iscale = -127.0f / x[first];
        if (!(iscale <= FLT_MAX && iscale >= -FLT_MAX)) continue; /* too small to invert: zero */
        for (size_t i = 0; i < 256; i++) {
            int32_t v = moe_round(iscale * x[i]);
            out->q[i] = (int8_t)(v > 127 ? 127 : v);
        }
        for (size_t g = 0; g < 16; g++) {
            int32_t sum = 0;
            for (size_t i = 0; i < 16; i++) sum += out->q[g * 16 + i];
            out->sum16[g] = (int16_t)sum;
        }
        for (size_t g = 0; g < 8; g++)
            out->sum32[g] = (int16_t)(out->sum16[2 * g] + out->sum16[2 * g + 1]);
        out->d = 1.0f / iscale;
    }
}

/* v rounded to fp16; a number too large for fp16 is kept as it is, where llama.cpp has infinity */
MOE_INLINE float moe_round_half(float v) {
    float f = f32_from_f16(f16_from_f32(v));
    return f > FLT_MAX || f < -FLT_MAX ? v : f;
}

__attribute__((unused)) static void quantize_row_q8_0(size_t n, const float *x, void *y) {
    int8_t *q = y;
    float *d = (float *)(q + n), *s = d + n / 32;
    int32_t *sums = (int32_t *)(s + n / 32);
    for (size_t b = 0; b < n / 32; b++, x += 32, q += 32) {
        uint32_t top = moe_max_abs_bits(32, x);
        float max = top < 0x7f800000 ? f32_from_bits(top) : NAN, inverse = 127.0f / max;
        int32_t sum = 0;
        if (!(inverse <= FLT_MAX)) { /* not finite, zero, or too small to invert */
            memset(q, 0, 32);
        } else {
            for (size_t i = 0; i < 32; i++) {
                int32_t v = moe_round(inverse * x[i]);
                q[i] = (int8_t)v;
                sum += v;
            }
        }
        float scale = max / 127.0f;
        d[b] = moe_round_half(scale);
        s[b] = moe_round_half(scale * (float)sum);
        sums[b] = sum;
    }
}

static void quantize_row_f32(size_t n, const float *x, void *y) { memcpy(y, x, n * sizeof *x); }

static void quantize_row_f16(size_t n, const float *x, void *y) {
    float *out = y;
    for (size_t i = 0; i < n; i += 16) {
        size_t k = n - i < 16 ? n - i : 16;
        uint16_t half[16];
        v16_store_f16(half, v16_load_n(x + i, k));
        v16_store_n(out + i, v16_load_f16(half), k);
    }
}

static void quantize_row_bf16(size_t n, const float *x, void *y) {
    uint16_t *out = y;
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = f32_bits(x[i]);
        uint32_t even = bits + 0x7fff + (bits >> 16 & 1), quiet = bits | 0x00400000;
        out[i] = (uint16_t)(((bits & 0x7fffffff) > 0x7f800000 ? quiet : even) >> 16);
    }
}

#if MOE_SIMD_AVX2 && !MOE_SIMD_AVX512
#include "x_rows_avx2.h"
#define MOE_QUANTIZE_Q8_0 quantize_row_avx2_q8_0
#define MOE_QUANTIZE_Q8_K quantize_row_avx2_q8_K
#else
#define MOE_QUANTIZE_Q8_0 quantize_row_q8_0
#define MOE_QUANTIZE_Q8_K quantize_row_q8_K
#endif

/* the entries of moe_isa.x */
#define MOE_X_INIT                                                                  \
    [MOE_X_F32] = {1, 4, quantize_row_f32}, [MOE_X_F16] = {1, 4, quantize_row_f16}, \
    [MOE_X_BF16] = {1, 2, quantize_row_bf16},                                       \
    [MOE_X_Q8_0] = {32, MOE_X_Q8_0_BYTES, MOE_QUANTIZE_Q8_0},                       \
    [MOE_X_Q8_K] = {256, sizeof(block_x_q8_K), MOE_QUANTIZE_Q8_K},                  \
    [MOE_X_Q8_K_A] = {256, sizeof(block_x_q8_K), MOE_QUANTIZE_Q8_K},                \
    [MOE_X_Q8_K_B] = {256, sizeof(block_x_q8_K), MOE_QUANTIZE_Q8_K}

#endif
