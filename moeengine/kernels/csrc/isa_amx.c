/* CPUs with tiles of 8-bit integers: AVX-512, and tiles for products of many activation rows. */
#include "moe_table.h"
#if MOE_HAS_AMX
#define MOE_AMX_EMULATED 0
#define MOE_ISA_SYMBOL moe_isa_amx
#define MOE_ISA_NAME "amx"
#define MOE_ISA_FEATURES                                                    \
    "avx2,fma,f16c,bmi,bmi2,popcnt,avx512f,avx512bw,avx512vl,avx512dq,"     \
    "avx512cd,avx512vnni,avx512vbmi,avx512vbmi2,gfni,amx-tile,amx-int8"

#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wunused-function" /* the products of quants/all.h are not used here */
#endif
#include "isa_begin.h"
#include "simd/avx512.h"
#include "amx_isa.h"
#include "isa_end.h"
#else
typedef int moe_no_amx; /* a file must not be empty */
#endif
