/* CPUs with AVX-512 up to VNNI and VBMI2. */
#if defined(__x86_64__)
#define MOE_ISA_SYMBOL moe_isa_avx512
#define MOE_ISA_NAME "avx512"
#define MOE_ISA_FEATURES                                                    \
    "avx2,fma,f16c,bmi,bmi2,popcnt,avx512f,avx512bw,avx512vl,avx512dq,"     \
    "avx512cd,avx512vnni,avx512vbmi,avx512vbmi2,gfni"

#include "isa_begin.h"
#include "simd/avx512.h"
#include "isa_body.h"
#include "isa_end.h"
#else
typedef int moe_no_avx512; /* a file must not be empty */
#endif
