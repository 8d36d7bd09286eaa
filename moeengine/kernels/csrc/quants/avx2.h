/* Products of this instruction set's own: included by all.h for AVX2 without AVX-512. */
#include "../mul_avx2.h"
#include "../mul_avx2_groups.h"
#include "../mul_avx2_grids.h"

#include "small_avx2.h"
#include "q4_K_avx2.h"
#include "q5_K_avx2.h"
#include "q6_K_avx2.h"
#include "q2_K_avx2.h"
#include "q3_K_avx2.h"
#include "iq4_xs_avx2.h"
#include "iq2_xxs_avx2.h"
#include "iq2_xs_avx2.h"
#include "iq2_s_avx2.h"
#include "iq3_xxs_avx2.h"
#include "iq3_s_avx2.h"
#include "iq1_avx2.h"
#include "tq_avx2.h"

#if defined(__clang__)
#pragma clang diagnostic ignored "-Winitializer-overrides"
#endif
#define AVX2_OWN(id, NAME) [id].mul_mat = mul_mat_avx2_##NAME,
#define MOE_TYPES_OWN                                                                                        \
    AVX2_OWN(2, Q4_0) AVX2_OWN(3, Q4_1) AVX2_OWN(8, Q8_0)                \
    AVX2_OWN(10, Q2_K) AVX2_OWN(11, Q3_K) AVX2_OWN(12, Q4_K) AVX2_OWN(13, Q5_K) AVX2_OWN(14, Q6_K)           \
    AVX2_OWN(16, IQ2_XXS) AVX2_OWN(17, IQ2_XS) AVX2_OWN(22, IQ2_S) AVX2_OWN(18, IQ3_XXS) AVX2_OWN(21, IQ3_S) \
    AVX2_OWN(20, IQ4_NL) AVX2_OWN(23, IQ4_XS) AVX2_OWN(19, IQ1_S) AVX2_OWN(29, IQ1_M) AVX2_OWN(39, MXFP4)    \
    AVX2_OWN(40, NVFP4) AVX2_OWN(34, TQ1_0) AVX2_OWN(35, TQ2_0)
