/* For tests: isa_amx.c with its tile instructions emulated (amx_tiles.h), on any CPU with AVX-512. Takes every product
 * through tiles, also of one activation row. Only chosen by name. */
#if defined(__x86_64__)
#define MOE_AMX_EMULATED 1
#define MOE_AMX_MIN_ROWS 1
#define MOE_ISA_SYMBOL moe_isa_amx_emulated
#define MOE_ISA_NAME "amx_emulated"
#define MOE_ISA_FEATURES                                                    \
    "avx2,fma,f16c,bmi,bmi2,popcnt,avx512f,avx512bw,avx512vl,avx512dq,"     \
    "avx512cd,avx512vnni,avx512vbmi,avx512vbmi2,gfni"

#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wunused-function" /* the products of quants/all.h are not used here */
#endif
#include "isa_begin.h"
#include "simd/avx512.h"
#include "amx_isa.h"
#include "isa_end.h"
#else
typedef int moe_no_amx_emulated; /* a file must not be empty */
#endif
