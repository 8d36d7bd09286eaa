/* AVX-512: the products and activation rows that replace those of mul_generic.h and x_rows.h. */
#ifndef MOE_MUL_AVX512_H
#define MOE_MUL_AVX512_H
#include "gemm32_avx512.h"
#include "gemm_avx512.h"
#include "lanes_avx512.h"
#include "generated/codes.h"

/*              KIND, groups, offset, mins, mins whole, scales first, format of x */
MOE_KIND_AVX512(min8, 8, 0, 8, 0, 1, MOE_X_Q8_K)
MOE_KIND_AVX512(min16, 16, 0, 16, 0, 0, MOE_X_Q8_K)
MOE_KIND_AVX512(folded_min16, 1, 0, 16, 0, 0, MOE_X_Q8_K)
MOE_KIND_AVX512(offset4, 16, 4, 0, 0, 0, MOE_X_Q8_K)
MOE_KIND_AVX512(signed16, 16, 32, 0, 0, 1, MOE_X_Q8_K)
MOE_KIND_AVX512(signed8, 8, 128, 0, 0, 1, MOE_X_Q8_K)
MOE_KIND_AVX512(signed8_planes, 8, 64, 0, 0, 0, MOE_X_Q8_K_A)
MOE_KIND_AVX512(signed16_planes, 16, 64, 0, 0, 0, MOE_X_Q8_K_B)
MOE_KIND_AVX512(offset9, 16, 9, 0, 0, 0, MOE_X_Q8_K)
MOE_KIND_AVX512(folded_whole_min8, 1, 0, 8, 1, 0, MOE_X_Q8_K)
MOE_KIND_AVX512(ternary, 1, 1, 0, 0, 0, MOE_X_Q8_K)

#include "quants/q4_K_avx512.h"
#include "quants/q5_K_avx512.h"
#include "quants/q6_K_avx512.h"
#include "quants/q2_K_avx512.h"
#include "quants/q3_K_avx512.h"
#include "quants/iq4_xs_avx512.h"
#include "quants/iq2_xxs_avx512.h"
#include "quants/iq2_s_avx512.h"
#include "quants/iq3_xxs_avx512.h"
#include "quants/tq_avx512.h"
#include "quants/iq1_avx512.h"

/*                KIND, size, offset, has_min */
MOE_KIND32_AVX512(offset8_32, 32, 8, 0)
MOE_KIND32_AVX512(offset16_32, 32, 16, 0)
MOE_KIND32_AVX512(offset16_16, 16, 16, 0)
MOE_KIND32_AVX512(signed_32, 32, 128, 0)
MOE_KIND32_AVX512(min_32, 32, 0, 1)

#include "quants/blocks32_avx512.h"

/* BF16: the same numbers (moe_table.h) by the instruction made for them, which some AVX-512 CPUs and old compilers lack. */
#if defined(__clang__) ? __clang_major__ >= 9 : __GNUC__ >= 10
#define MOE_BF16_TARGET __attribute__((target(MOE_ISA_FEATURES ",avx512bf16")))
MOE_BF16_TARGET MOE_INLINE void moe_tile_avx512bf16(const moe_mul *m, size_t r, size_t nr, size_t t, size_t nt) {
    const uint8_t *w = (const uint8_t *)m->w + r * m->w_stride, *x = (const uint8_t *)m->x + t * m->x_stride;
    __m512 acc[4][4];
    for (size_t i = 0; i < nr; i++)
        for (size_t j = 0; j < nt; j++) acc[i][j] = _mm512_setzero_ps();
    size_t k = 0;
    for (; k + 32 <= m->n_in; k += 32) {
        __m512i wk[4];
        for (size_t i = 0; i < nr; i++) wk[i] = _mm512_loadu_si512(w + i * m->w_stride + 2 * k);
        for (size_t j = 0; j < nt; j++) {
            const __m512bh xk = (__m512bh)_mm512_loadu_si512(x + j * m->x_stride + 2 * k);
            for (size_t i = 0; i < nr; i++) acc[i][j] = _mm512_dpbf16_ps(acc[i][j], (__m512bh)wk[i], xk);
        }
    }
    const __mmask32 rest = (1u << (m->n_in - k)) - 1;
    for (size_t i = 0; i < nr; i++)
        for (size_t j = 0; j < nt; j++) {
            const uint8_t *wk = w + i * m->w_stride + 2 * k, *xk = x + j * m->x_stride + 2 * k;
            if (rest)
                acc[i][j] = _mm512_dpbf16_ps(acc[i][j], (__m512bh)_mm512_maskz_loadu_epi16(rest, wk),
                                             (__m512bh)_mm512_maskz_loadu_epi16(rest, xk));
            m->out[(t + j) * m->out_stride + r + i] = v16_hsum(acc[i][j]);
        }
}
MOE_BF16_TARGET static void mul_mat_avx512bf16(const moe_mul *m) { moe_mul_floats(m, moe_tile_avx512bf16); }
static void mul_mat_avx512_BF16(const moe_mul *m) {
    if (__builtin_cpu_supports("avx512bf16")) mul_mat_avx512bf16(m);
    else mul_mat_BF16(m);
}
#else
#define mul_mat_avx512_BF16 mul_mat_BF16
#endif

#define MOE_TYPES_OWN                                                                                   \
    [10].mul_mat = mul_mat_avx512_Q2_K, [11].mul_mat = mul_mat_avx512_Q3_K,                             \
    [12].mul_mat = mul_mat_avx512_Q4_K, [13].mul_mat = mul_mat_avx512_Q5_K,                             \
    [14].mul_mat = mul_mat_avx512_Q6_K, [16].mul_mat = mul_mat_avx512_IQ2_XXS,                          \
    [17].mul_mat = mul_mat_avx512_IQ2_XS, [22].mul_mat = mul_mat_avx512_IQ2_S,                          \
    [18].mul_mat = mul_mat_avx512_IQ3_XXS, [21].mul_mat = mul_mat_avx512_IQ3_S,                         \
    [23].mul_mat = mul_mat_avx512_IQ4_XS, [19].mul_mat = mul_mat_avx512_IQ1_S,                          \
    [29].mul_mat = mul_mat_avx512_IQ1_M, [34].mul_mat = mul_mat_avx512_TQ1_0,                           \
    [35].mul_mat = mul_mat_avx512_TQ2_0, [2].mul_mat = mul_mat_avx512_Q4_0,                             \
    [3].mul_mat = mul_mat_avx512_Q4_1, [6].mul_mat = mul_mat_avx512_Q5_0,                               \
    [7].mul_mat = mul_mat_avx512_Q5_1, [8].mul_mat = mul_mat_avx512_Q8_0,                               \
    [20].mul_mat = mul_mat_avx512_IQ4_NL, [39].mul_mat = mul_mat_avx512_MXFP4,                          \
    [40].mul_mat = mul_mat_avx512_NVFP4, [30].mul_mat = mul_mat_avx512_BF16, [16].x_format = MOE_X_Q8_K_A, [18].x_format = MOE_X_Q8_K_A,    \
    [21].x_format = MOE_X_Q8_K_A, [17].x_format = MOE_X_Q8_K_B, [22].x_format = MOE_X_Q8_K_B,

#define MOE_X_OWN                                                                                       \
    , [MOE_X_Q8_0].quantize_row = quantize_row_avx512_q8_0,                                             \
      [MOE_X_Q8_K].quantize_row = quantize_row_avx512_q8_K,                                             \
      [MOE_X_Q8_K_A].quantize_row = quantize_row_avx512_q8_K_a,                                         \
      [MOE_X_Q8_K_B].quantize_row = quantize_row_avx512_q8_K_b
#endif
