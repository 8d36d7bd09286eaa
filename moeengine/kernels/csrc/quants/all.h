/* Every weight type: blocks, unpacking, dequantizing, activation rows and the products that work for
 * all of them. Included once by each instruction set's C file, inside its target region. */
#ifndef MOE_QUANTS_ALL_H
#define MOE_QUANTS_ALL_H
#include "../generated/grids.h"
#include "block.h"
#include "x_rows.h"

#include "f32.h"
#include "f16.h"
#include "bf16.h"
#include "q4_0.h"
#include "q4_1.h"
#include "q5_0.h"
#include "q5_1.h"
#include "q8_0.h"
#include "q4_K.h"
#include "q2_K.h"
#include "q3_K.h"
#include "q5_K.h"
#include "q6_K.h"
#include "iq4_nl.h"
#include "iq4_xs.h"
#include "iq2_xxs.h"
#include "iq2_xs.h"
#include "iq2_s.h"
#include "iq3_xxs.h"
#include "iq3_s.h"
#include "iq1_s.h"
#include "iq1_m.h"
#include "mxfp4.h"
#include "nvfp4.h"
#include "tq1_0.h"
#include "tq2_0.h"

#define MOE_ASSERT_SIZE(id, NAME, block, bytes, x_format) \
    _Static_assert(sizeof(block_##NAME) == (bytes), "block_" #NAME " does not have the size of quants/list.h");
MOE_QUANT_LIST(MOE_ASSERT_SIZE)

#include "../mul_generic.h"
#include "../mul_lanes.h"

/* An instruction set's own products and activation rows: MOE_TYPES_OWN and MOE_X_OWN hold entries that
 * replace those of the generic ones, like  [12].mul_mat = mul_mat_avx2_Q4_K, */
#if MOE_SIMD_AVX512
#include "../mul_avx512.h"
#elif MOE_SIMD_AVX2
#include "avx2.h"
#else
#define MOE_TYPES_OWN
#endif
#ifndef MOE_X_OWN
#define MOE_X_OWN
#endif

#define MOE_TYPE_ENTRY(id, NAME, block, bytes, x_format) \
    [id] = {#NAME, id, x_format, block, bytes, dequantize_row_##NAME, mul_mat_##NAME},
/* the entries of moe_isa.types */
#define MOE_TYPES_INIT MOE_QUANT_LIST(MOE_TYPE_ENTRY) MOE_TYPES_OWN

#endif
