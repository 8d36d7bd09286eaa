/* Opens the region that is compiled for MOE_ISA_FEATURES, the same literal that moe_isa.features
 * carries and cpu.c checks. System headers come first: they are not part of the region. */
#include <immintrin.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define MOE_PRAGMA_TEXT(x) _Pragma(#x)
#define MOE_PRAGMA(x) MOE_PRAGMA_TEXT(x)
#if defined(__clang__)
MOE_PRAGMA(clang attribute push(__attribute__((target(MOE_ISA_FEATURES))), apply_to = function))
#else
MOE_PRAGMA(GCC push_options)
MOE_PRAGMA(GCC target(MOE_ISA_FEATURES))
#endif
