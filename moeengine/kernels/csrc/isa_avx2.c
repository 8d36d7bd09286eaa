/* CPUs with AVX2, FMA and F16C. */
#if defined(__x86_64__)
#define MOE_ISA_SYMBOL moe_isa_avx2
#define MOE_ISA_NAME "avx2"
#define MOE_ISA_FEATURES "avx2,fma,f16c,bmi,bmi2,popcnt"

#include "isa_begin.h"
#include "simd/avx2.h"
#include "isa_body.h"
#include "isa_end.h"
#else
typedef int moe_no_avx2; /* a file must not be empty */
#endif
