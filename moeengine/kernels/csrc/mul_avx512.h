/* AVX-512: the products and activation rows that replace those of mul_generic.h and x_rows.h. */
#ifndef MOE_MUL_AVX512_H
#define MOE_MUL_AVX512_H
#include "gemm32_avx512.h"
#include "gemm_avx512.h"
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
    [40].mul_mat = mul_mat_avx512_NVFP4, [16].x_format = MOE_X_Q8_K_A, [18].x_format = MOE_X_Q8_K_A,    \
    [21].x_format = MOE_X_Q8_K_A, [17].x_format = MOE_X_Q8_K_B, [22].x_format = MOE_X_Q8_K_B,

#define MOE_X_OWN                                                                                       \
    , [MOE_X_Q8_0].quantize_row = quantize_row_avx512_q8_0,                                             \
      [MOE_X_Q8_K].quantize_row = quantize_row_avx512_q8_K,                                             \
      [MOE_X_Q8_K_A].quantize_row = quantize_row_avx512_q8_K_a,                                         \
      [MOE_X_Q8_K_B].quantize_row = quantize_row_avx512_q8_K_b
#endif
