/* AVX-512: 16 rows of weights side by side, one row a 32-bit lane.
 *
 * Weights lie row by row in the file. A 64-byte piece of 16 rows, transposed as 16x16 dwords, gives vectors
 * that hold the same four bytes of all 16 rows; unpacking those gives *steps*: vectors of 16 x 4 unsigned
 * weights that vpdpbusd multiplies with four activations, broadcast. So scales, block sums and the running
 * floats are lanes too, nothing is summed across a register, and `out` is written 16 rows at a time.
 *
 * A type's unpack function (quants/<type>_avx512.h) is written once and drives a *sink*, which is known
 * when it is compiled: either the panel in memory (many activation rows: gemm_avx512.h multiplies it) or
 * the sums of one activation row (decode), where a step never leaves the registers. */
#ifndef MOE_PANEL_AVX512_H
#define MOE_PANEL_AVX512_H
#include "x_rows_avx512.h"

/* What a type's steps mean; every field is a compile-time constant of the type. */
typedef struct moe_kind {
    int n_groups; /* groups with a scale of their own: 8, 16, or 1 where scales are folded into the weights */
    int offset;   /* a step holds weight + offset, 0..255 */
    int n_mins;   /* groups with a min of their own: 0, 8 or 16 */
    int whole_mins; /* 1: mins are whole numbers of the weights' unit, taken off their sum as integers */
    int scales_first; /* MOE_SCALES_FIRST of its types */
    int format;   /* MOE_X_Q8_K, or _A or _B: activations in the order of the steps */
} moe_kind;

typedef struct moe_panel { /* a 256-block of 16 rows */
    uint8_t step[64][64];
    int32_t scale[16][16]; /* [group][row] */
    int16_t mins[8][32];   /* [pair of groups][row]{even, odd} */
    float d[16], dmin[16];
} __attribute__((aligned(64))) moe_panel;

/* 16 rows of packed weights. Four pointers and two strides reach all of them with the address modes of a
 * load; sixteen pointers would not stay in registers. */
typedef struct moe_rows {
    const uint8_t *p[4]; /* rows 0, 4, 8, 12 */
    size_t stride, stride3;
    size_t ahead; /* bytes that a row is fetched ahead */
} moe_rows;

MOE_INLINE moe_rows moe_rows_at(const uint8_t *p, size_t stride, size_t ahead) {
    moe_rows r = {{p, p + 4 * stride, p + 8 * stride, p + 12 * stride}, stride, 3 * stride, ahead};
    /* compilers would otherwise derive 16 pointers from one again, and spill them */
    __asm__("" : "+r"(r.p[0]), "+r"(r.p[1]), "+r"(r.p[2]), "+r"(r.p[3]), "+r"(r.stride), "+r"(r.stride3));
    return r;
}

MOE_INLINE const uint8_t *moe_row(const moe_rows *r, const int i) {
    return r->p[i / 4] + (i % 4 == 3 ? r->stride3 : (size_t)(i % 4) * r->stride);
}

/* 16 rows from fewer: the last ones of w, copied block by block so that nothing past them is read */
MOE_INLINE moe_rows moe_short_panel(const uint8_t *w, size_t w_stride, size_t n_rows, size_t bytes, uint8_t *copy) {
    for (size_t i = 0; i < n_rows; i++) memcpy(copy + i * bytes, w + i * w_stride, bytes);
    memset(copy + n_rows * bytes, 0, (16 - n_rows) * bytes);
    return moe_rows_at(copy, bytes, 0);
}

/* n bytes in the order of the memory, brought into the second-level cache: not into the first, whose few fill buffers would then
 * be the limit. They may lie past the end of w. */
MOE_INLINE void moe_fetch_bytes(const uint8_t *p, size_t n) {
    for (size_t off = 0; off < n; off += 64) _mm_prefetch((const char *)p + off, _MM_HINT_T1);
}

/* The rows of weights after the 16 at r0, to be fetched meanwhile: NULL where nobody knows what comes. */
MOE_INLINE const uint8_t *moe_rows_to_come(const moe_mul *m, size_t r0) {
    return r0 + 16 < m->n_rows ? (const uint8_t *)m->w + (r0 + 16) * m->w_stride : m->next;
}

/* Has the block `ahead` bytes further on in every row fetched, as by moe_fetch_bytes. */
MOE_INLINE void moe_fetch(const moe_rows *r, const size_t bytes) {
    for (size_t off = 0; off + 4 < bytes; off += 64)
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) _mm_prefetch((const char *)moe_row(r, i) + off + r->ahead, _MM_HINT_T1);
}

#define MOE_STREAM_AHEAD 1024 /* bytes that a stream of rows is fetched ahead; 512 to 4096 are equal */

/* Before block b of 16 rows: fetches the same part of the 16 neighbours at `next`; where that is NULL, what lies ahead in
 * every row. */
MOE_INLINE void moe_fetch_for_dot(const moe_rows *r, const size_t bytes, const uint8_t *next, size_t b) {
    if (next) moe_fetch_bytes(next + 16 * bytes * b, 16 * bytes);
    else moe_fetch(r, bytes);
}

/* Loads before this stay before it. A row's first lines are to be touched first: the prefetchers of the CPU do
 * not take a stream that starts at the end of each block for one (Zen 4, Q6_K: 8 GB/s instead of 30). */
MOE_INLINE void moe_keep_order(void) { __asm__ volatile("" ::: "memory"); }

/* ---- 16 rows -> lanes ---- */

MOE_INLINE __m512i moe_two_rows(const moe_rows *r, size_t off, const int lo, const int hi) {
    __m256i a = _mm256_loadu_si256((const void *)(moe_row(r, lo) + off));
    __m256i b = _mm256_loadu_si256((const void *)(moe_row(r, hi) + off));
    return _mm512_mask_broadcast_i64x4(_mm512_castsi256_si512(a), 0xf0, b);
}

/* in 128-bit lanes: a[i] holds 4 dwords of row i -> a[c] holds dword c of 4 rows */
MOE_INLINE void moe_transpose_4x4(__m512i a[4]) {
    __m512i b0 = _mm512_unpacklo_epi32(a[0], a[1]), b1 = _mm512_unpackhi_epi32(a[0], a[1]);
    __m512i b2 = _mm512_unpacklo_epi32(a[2], a[3]), b3 = _mm512_unpackhi_epi32(a[2], a[3]);
    a[0] = _mm512_unpacklo_epi64(b0, b2), a[1] = _mm512_unpackhi_epi64(b0, b2);
    a[2] = _mm512_unpacklo_epi64(b1, b3), a[3] = _mm512_unpackhi_epi64(b1, b3);
}

/* 32 bytes at `off` of each row -> t[j]: dword j, lane = row. Half of the rows are put in place by masked
 * broadcast loads, which takes a quarter of a plain transpose off the shuffle ports. */
MOE_INLINE void moe_load_32(const moe_rows *r, size_t off, __m512i t[8]) {
    __m512i a[4], b[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        a[i] = moe_two_rows(r, off, i, i + 4);
        b[i] = moe_two_rows(r, off, i + 8, i + 12);
    }
    moe_transpose_4x4(a);
    moe_transpose_4x4(b);
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
        t[c] = _mm512_shuffle_i32x4(a[c], b[c], 0x88);
        t[c + 4] = _mm512_shuffle_i32x4(a[c], b[c], 0xdd);
    }
}

MOE_INLINE __m128i moe_row_16(const moe_rows *r, size_t off, const int i) {
    return _mm_loadu_si128((const void *)(moe_row(r, i) + off));
}

/* 16 bytes at `off` of each row -> t[j]: dword j, lane = row */
MOE_INLINE void moe_load_16(const moe_rows *r, size_t off, __m512i t[4]) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        __m512i v = _mm512_castsi128_si512(moe_row_16(r, off, i));
        v = _mm512_mask_broadcast_i32x4(v, 0x00f0, moe_row_16(r, off, i + 4));
        v = _mm512_mask_broadcast_i32x4(v, 0x0f00, moe_row_16(r, off, i + 8));
        t[i] = _mm512_mask_broadcast_i32x4(v, 0xf000, moe_row_16(r, off, i + 12));
    }
    moe_transpose_4x4(t);
}

/* 4 bytes at `off` of rows i .. i + 3 */
MOE_INLINE __m128i moe_four_rows_4(const moe_rows *r, size_t off, const int i) {
    __m128i v = _mm_cvtsi32_si128((int)moe_load_u32(moe_row(r, i) + off));
    v = _mm_insert_epi32(v, (int)moe_load_u32(moe_row(r, i + 1) + off), 1);
    v = _mm_insert_epi32(v, (int)moe_load_u32(moe_row(r, i + 2) + off), 2);
    return _mm_insert_epi32(v, (int)moe_load_u32(moe_row(r, i + 3) + off), 3);
}

/* 4 bytes at `off` of each row */
MOE_INLINE __m512i moe_load_4(const moe_rows *r, size_t off) {
    __m256i lo = _mm256_set_m128i(moe_four_rows_4(r, off, 4), moe_four_rows_4(r, off, 0));
    __m256i hi = _mm256_set_m128i(moe_four_rows_4(r, off, 12), moe_four_rows_4(r, off, 8));
    return _mm512_inserti64x4(_mm512_castsi256_si512(lo), hi, 1);
}

/* 2 bytes at `off` of rows i .. i + 7 */
MOE_INLINE __m128i moe_eight_rows_2(const moe_rows *r, size_t off, const int i) {
    __m128i v = _mm_cvtsi32_si128(moe_load_u16(moe_row(r, i) + off));
    v = _mm_insert_epi16(v, moe_load_u16(moe_row(r, i + 1) + off), 1);
    v = _mm_insert_epi16(v, moe_load_u16(moe_row(r, i + 2) + off), 2);
    v = _mm_insert_epi16(v, moe_load_u16(moe_row(r, i + 3) + off), 3);
    v = _mm_insert_epi16(v, moe_load_u16(moe_row(r, i + 4) + off), 4);
    v = _mm_insert_epi16(v, moe_load_u16(moe_row(r, i + 5) + off), 5);
    v = _mm_insert_epi16(v, moe_load_u16(moe_row(r, i + 6) + off), 6);
    return _mm_insert_epi16(v, moe_load_u16(moe_row(r, i + 7) + off), 7);
}

/* a half float at `off` of each row */
MOE_INLINE __m512 moe_load_halves(const moe_rows *r, size_t off) {
    return _mm512_cvtph_ps(_mm256_set_m128i(moe_eight_rows_2(r, off, 8), moe_eight_rows_2(r, off, 0)));
}
MOE_INLINE __m512 moe_low_half(__m512i v) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(v)); }
MOE_INLINE __m512 moe_high_half(__m512i v) { return moe_low_half(_mm512_srli_epi32(v, 16)); }

/* ---- pieces of dwords ---- */

/* a where m is set, else b */
MOE_INLINE __m512i moe_select(__m512i m, __m512i a, __m512i b) { return _mm512_ternarylogic_epi32(m, a, b, 0xca); }
/* a | (b & m) */
MOE_INLINE __m512i moe_or_and(__m512i a, __m512i b, __m512i m) { return _mm512_ternarylogic_epi32(a, b, m, 0xf8); }

/* byte i of each dword, zero-extended */
MOE_INLINE __m512i moe_byte(__m512i v, const int i) {
    if (i == 0) return _mm512_and_si512(v, _mm512_set1_epi32(255));
    if (i == 3) return _mm512_srli_epi32(v, 24);
    return _mm512_maskz_shuffle_epi8(0x1111111111111111, v, _mm512_set4_epi32(12 + i, 8 + i, 4 + i, i));
}

/* byte i of each dword, sign-extended */
MOE_INLINE __m512i moe_signed_byte(__m512i v, const int i) {
    return _mm512_srai_epi32(i == 3 ? v : _mm512_slli_epi32(v, 24 - 8 * i), 24);
}

/* bytes i and i+1 of each dword, zero-extended to 16 bits */
MOE_INLINE __m512i moe_byte_pair(__m512i v, const int i) {
    const int one = i | (i + 1) << 16, next = 4 | 4 << 16;
    return _mm512_maskz_shuffle_epi8(0x5555555555555555, v,
                                     _mm512_set4_epi32(one + 3 * next, one + 2 * next, one + next, one));
}

/* byte i of each dword in both its words */
MOE_INLINE __m512i moe_byte_twice(__m512i v, const int i) {
    const int one = i | i << 16, next = 4 | 4 << 16;
    return _mm512_maskz_shuffle_epi8(0x5555555555555555, v,
                                     _mm512_set4_epi32(one + 3 * next, one + 2 * next, one + next, one));
}

/* byte i of each dword in all its bytes */
MOE_INLINE __m512i moe_byte_everywhere(__m512i v, const int i) {
    const int one = 0x01010101 * i, next = 0x04040404;
    return _mm512_shuffle_epi8(v, _mm512_set4_epi32(one + 3 * next, one + 2 * next, one + next, one));
}

/* of the 8 bytes of two dwords the even or the odd ones */
MOE_INLINE __m512i moe_every_other(__m512i a, __m512i b, const int odd) {
    const __m512i lane = _mm512_set_epi32(0x3c3c3c3c, 0x38383838, 0x34343434, 0x30303030, 0x2c2c2c2c, 0x28282828,
                                          0x24242424, 0x20202020, 0x1c1c1c1c, 0x18181818, 0x14141414, 0x10101010,
                                          0x0c0c0c0c, 0x08080808, 0x04040404, 0);
    return _mm512_permutex2var_epi8(a, _mm512_add_epi8(lane, _mm512_set1_epi32(odd ? 0x43410301 : 0x42400200)), b);
}

/* ---- sinks ---- */

typedef struct moe_sink {
    moe_kind kind;
    moe_panel *panel;         /* not NULL: store there and do nothing else */
    const block_x_q8_K *x;  /* otherwise: multiply with this block of one activation row */
    const int32_t *start;     /* what the sums of its groups start from (moe_group_starts) */
    __m512i part, isum, msum; /* of the group, of the block */
    __m512 acc;               /* of the row so far */
} moe_sink;

/* {y, y, ..}: 4 bytes at p for all rows */
MOE_INLINE __m512i moe_broadcast_4(const void *p) { return _mm512_set1_epi32((int)moe_load_u32(p)); }

/* -offset * sum of the activations of every group: takes off in advance what the offset adds */
MOE_INLINE __m512i moe_group_starts(const moe_kind kind, const block_x_q8_K *x) {
    __m512i s = kind.n_groups == 16  ? _mm512_cvtepi16_epi32(_mm256_load_si256((const void *)x->sum16))
                : kind.n_groups == 8 ? _mm512_cvtepi16_epi32(_mm256_castsi128_si256(_mm_load_si128((const void *)x->sum32)))
                                     : _mm512_set1_epi32(x->sum);
    return _mm512_mullo_epi32(s, _mm512_set1_epi32(-kind.offset));
}

/* group g starts */
MOE_INLINE void moe_sink_group(moe_sink *s, const int g) {
    if (s->panel) return;
    s->part = s->kind.offset ? moe_broadcast_4(s->start + g) : _mm512_setzero_si512();
}

MOE_INLINE void moe_sink_step(moe_sink *s, const int step, __m512i weights) {
    if (s->panel) _mm512_store_si512(s->panel->step[step], weights);
    else s->part = _mm512_dpbusd_epi32(s->part, weights, moe_broadcast_4(s->x->q + 4 * step));
}

/* group g is complete; types with one group have no scale */
MOE_INLINE void moe_sink_scale(moe_sink *s, const int g, __m512i scale) {
    if (s->panel) {
        if (s->kind.n_groups > 1) _mm512_store_si512(s->panel->scale[g], scale);
    } else {
        s->isum = s->kind.n_groups == 1 ? s->part : _mm512_add_epi32(s->isum, _mm512_mullo_epi32(s->part, scale));
    }
}

/* mins of groups 2*pair and 2*pair+1, 16 bits each */
MOE_INLINE void moe_sink_mins(moe_sink *s, const int pair, __m512i mins) {
    if (s->panel) _mm512_store_si512(s->panel->mins[pair], mins);
    else {
        const int16_t *sums = s->kind.n_mins == 8 ? s->x->sum32 : s->x->sum16;
        s->msum = _mm512_dpwssd_epi32(s->msum, mins, moe_broadcast_4(sums + 2 * pair));
    }
}

/* acc and the sums of one block, in the order of moe_table.h */
MOE_INLINE __m512 moe_finish_block(const moe_kind kind, __m512i isum, __m512i msum, __m512 d, __m512 dmin,
                                   const block_x_q8_K *x, __m512 acc) {
    if (kind.whole_mins) isum = _mm512_sub_epi32(isum, msum);
    const __m512 yd = _mm512_set1_ps(x->d), s = _mm512_cvtepi32_ps(isum), m = _mm512_cvtepi32_ps(msum);
    const int float_mins = kind.n_mins && !kind.whole_mins;
    if (kind.scales_first) {
        acc = _mm512_fmadd_ps(s, _mm512_mul_ps(d, yd), acc);
        return float_mins ? _mm512_fnmadd_ps(m, _mm512_mul_ps(dmin, yd), acc) : acc;
    }
    __m512 sum = _mm512_mul_ps(s, d);
    if (float_mins) sum = _mm512_fnmadd_ps(m, dmin, sum);
    return _mm512_fmadd_ps(sum, yd, acc);
}

/* the block is complete */
MOE_INLINE void moe_sink_finish(moe_sink *s, __m512 d, __m512 dmin) {
    if (s->panel) {
        _mm512_store_ps(s->panel->d, d);
        if (s->kind.n_mins) _mm512_store_ps(s->panel->dmin, dmin);
        return;
    }
    s->acc = moe_finish_block(s->kind, s->isum, s->msum, d, dmin, s->x, s->acc);
    s->isum = s->msum = _mm512_setzero_si512();
}

#endif
