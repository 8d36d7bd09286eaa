/* Unpacking for tiles (amx_planes.h): AVX-512 code, compiled once for isa_amx.c and isa_amx_emulated.c. */
#if defined(__x86_64__)
#define MOE_ISA_FEATURES                                                    \
    "avx2,fma,f16c,bmi,bmi2,popcnt,avx512f,avx512bw,avx512vl,avx512dq,"     \
    "avx512cd,avx512vnni,avx512vbmi,avx512vbmi2,gfni"

#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wunused-function" /* the products of quants/all.h are not used here */
#endif
#include "isa_begin.h"
#include "simd/avx512.h"
#include "amx_planes.h"

MOE_INLINE __m512i moe_amx_twice(__m512i word) { return _mm512_or_si512(word, _mm512_slli_epi32(word, 16)); }

/* the low bytes of the words of `even` and `odd` side by side */
MOE_INLINE __m512i moe_amx_low_bytes(__m512i even, __m512i odd) {
    return moe_select(_mm512_set1_epi16(0x00ff), even, _mm512_slli_epi16(odd, 8));
}
MOE_INLINE __m512i moe_amx_high_bytes(__m512i even, __m512i odd) {
    return moe_select(_mm512_set1_epi16(0x00ff), _mm512_srli_epi16(even, 8), odd);
}

/* Scales of a group for vpmaddubsw, one a dword before. With `even` bytes 0 and 2 of weights become 16-bit products,
 * with `odd` bytes 1 and 3. */
typedef struct moe_amx_scale {
    __m512i even, odd;
    __m512i minus; /* what the products of u * s have too much */
} moe_amx_scale;

MOE_INLINE moe_amx_scale moe_amx_scale_bytes(__m512i scale, const int offset) {
    __m512i even = moe_amx_twice(_mm512_and_si512(scale, _mm512_set1_epi32(0xff)));
    __m512i words = moe_amx_twice(_mm512_and_si512(scale, _mm512_set1_epi32(0xffff)));
    return (moe_amx_scale){even, _mm512_slli_epi16(even, 8), _mm512_mullo_epi16(words, _mm512_set1_epi16((short)offset))};
}

/* The products of bytes 0 and 2, and of 1 and 3. vpmaddubsw takes one unsigned and one signed byte: u and any scale, or a
 * scale that is not negative and the weight. */
MOE_INLINE void moe_amx_products(__m512i u, const int offset, const int positive, const moe_amx_scale *s, __m512i p[2]) {
    if (positive) {
        __m512i weight = _mm512_sub_epi8(u, _mm512_set1_epi8((char)offset));
        p[0] = _mm512_maddubs_epi16(s->even, weight);
        p[1] = _mm512_maddubs_epi16(s->odd, weight);
    } else {
        p[0] = _mm512_sub_epi16(_mm512_maddubs_epi16(u, s->even), s->minus);
        p[1] = _mm512_sub_epi16(_mm512_maddubs_epi16(u, s->odd), s->minus);
    }
}

/* one group */
MOE_INLINE void moe_amx_split_group(const moe_panel *panel, moe_planes *planes, const int g, const int first,
                                    const int steps, const int offset, const enum moe_split split) {
    __m512i scale = _mm512_load_si512(panel->scale[g]), p[2];
    moe_amx_scale s = moe_amx_scale_bytes(scale, offset);
    if (split == MOE_SPLIT_WHOLE) s.minus = _mm512_sub_epi16(s.minus, _mm512_set1_epi16(127));
    for (int i = first; i < first + steps; i++) {
        moe_amx_products(_mm512_load_si512(panel->step[i]), offset, split == MOE_SPLIT_BYTES_POSITIVE, &s, p);
        if (moe_two_planes(split)) _mm512_store_si512(planes->step[0][i], moe_amx_high_bytes(p[0], p[1]));
        _mm512_store_si512(planes->step[moe_two_planes(split)][i], moe_amx_low_bytes(p[0], p[1]));
    }
}

MOE_INLINE void moe_amx_split(const moe_panel *panel, moe_planes *planes, const moe_kind kind, const enum moe_split split) {
    const int steps = 64 / kind.n_groups;
    for (int g = 0; g < kind.n_groups; g++) moe_amx_split_group(panel, planes, g, g * steps, steps, kind.offset, split);
}

#define MOE_AMX_DEFINE(id, NAME, KIND, SPLIT)                                   \
    void moe_amx_unpack_##NAME(const moe_rows *rows, moe_panel *panel, moe_planes *planes) { \
        moe_sink sink = {.kind = kind_##KIND, .panel = panel};                               \
        rows_avx512_##NAME(rows, &sink);                                                     \
        if (SPLIT != MOE_SPLIT_NONE) moe_amx_split(panel, planes, kind_##KIND, SPLIT);       \
    }
MOE_AMX_LIST_SPLIT(MOE_AMX_DEFINE)

#include "amx_iq2_xxs.h"
#include "amx_q4_K.h"

#define MOE_AMX_DEFINE_OWN(id, NAME, KIND, SPLIT)                                            \
    void moe_amx_unpack_##NAME(const moe_rows *rows, moe_panel *panel, moe_planes *planes) { \
        moe_sink sink = {.kind = kind_##KIND, .panel = panel}; /* for d and the mins */      \
        moe_amx_planes_##NAME(rows, &sink, planes);                                          \
    }
MOE_AMX_LIST_OWN(MOE_AMX_DEFINE_OWN)

/* n steps hold weight + offset -> the weight */
MOE_INLINE void moe_amx_take_off(uint8_t (*step)[64], const int n, const int offset) {
    for (int i = 0; i < n; i++)
        _mm512_store_si512(step[i], _mm512_sub_epi8(_mm512_load_si512(step[i]), _mm512_set1_epi8((char)offset)));
}

#define MOE_AMX_DEFINE_32(id, NAME, KIND)                                                                          \
    void moe_amx_unpack_##NAME(const moe_rows *rows, int group, moe_panel32 *panel) {                              \
        const int steps = kind_##KIND.size / 4, n = (int)shape_##NAME().block / 4;                                 \
        moe_sink32 sink = {.kind = kind_##KIND, .panel = panel, .group = group};                                   \
        rows_avx512_##NAME(rows, &sink);                                                                           \
        if (kind_##KIND.offset) moe_amx_take_off(panel->step + group * steps, n, kind_##KIND.offset);              \
    }
MOE_AMX_LIST_32(MOE_AMX_DEFINE_32)

#include "isa_end.h"
#else
typedef int moe_no_amx_unpack; /* a file must not be empty */
#endif
