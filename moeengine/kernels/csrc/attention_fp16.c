/* attention_f16 for CPUs whose arithmetic is that of half floats where ggml's is: the same bytes, without the rounding by hand. */
#include "moe_table.h"
#if MOE_HAS_FP16
#define MOE_ISA_FEATURES                                                    \
    "avx2,fma,f16c,bmi,bmi2,popcnt,avx512f,avx512bw,avx512vl,avx512dq,"     \
    "avx512cd,avx512vnni,avx512vbmi,avx512vbmi2,gfni,avx512fp16"

#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wunused-function" /* the rest of attention.h is that of isa_avx512.c */
#endif
#define MOE_SIMD_FP16 1
#include "isa_begin.h"
#include "simd/avx512.h"

/* float32 of F16 precision <-> half floats, and one rounded to a half float in all places */
MOE_INLINE __m512h f16_pack_32(const float *p) {
    __m512i low = _mm512_castsi256_si512(_mm512_cvtps_ph(v16_load(p), _MM_FROUND_TO_NEAREST_INT));
    return _mm512_castsi512_ph(_mm512_inserti64x4(low, _mm512_cvtps_ph(v16_load(p + 16), _MM_FROUND_TO_NEAREST_INT), 1));
}
MOE_INLINE void f16_unpack_32(__m512h x, float *p) {
    v16_store(p, _mm512_cvtph_ps(_mm512_castsi512_si256(_mm512_castph_si512(x))));
    v16_store(p + 16, _mm512_cvtph_ps(_mm512_extracti64x4_epi64(_mm512_castph_si512(x), 1)));
}
MOE_INLINE __m512h f16_set1_32(float x) { return _mm512_castsi512_ph(_mm512_set1_epi16((short)f16_from_f32(x))); }

#include "ops.h"
#include "attention.h"
#include "attention_f16.h"

void moe_attention_fp16(const moe_attn *a) { attention_f16(a); }
#include "isa_end.h"
#else
typedef int moe_no_fp16; /* a file must not be empty */
#endif
