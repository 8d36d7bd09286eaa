/* AVX-512: products of the types with small blocks, in the manner of gemm_avx512.h. A group (32 weights; NVFP4: 16)
 * has a float scale of its own, so its integer sum goes to the running float at once. */
#ifndef MOE_GEMM32_AVX512_H
#define MOE_GEMM32_AVX512_H
#include "gemm_avx512.h"

/* What a type's steps mean; every field is a compile-time constant of the type. */
typedef struct moe_kind32 {
    int size;   /* weights a group: 32 or 16 */
    int offset; /* a step holds weight + offset, 0..255 */
    int has_min;
} moe_kind32;

typedef struct moe_panel32 { /* up to 256 weights of 16 rows */
    uint8_t step[64][64];
    float d[16][16], m[16][16]; /* [group][row] */
} __attribute__((aligned(64))) moe_panel32;

/* One activation row from some group on. */
typedef struct moe_x32 {
    const int8_t *q;
    const float *d, *s; /* of its 32-block */
    const int32_t *sum;
} moe_x32;

MOE_INLINE moe_x32 moe_x32_at(size_t n, const uint8_t *row, size_t i) {
    moe_x_q8_0 x = moe_x_q8_0_at(n, row);
    return (moe_x32){x.q + i, x.d + i / 32, x.s + i / 32, x.sum + i / 32};
}

/* -offset * sum of the activations of up to 16 groups */
MOE_INLINE void moe_starts_32(const moe_kind32 kind, const moe_x32 *x, size_t n_groups, int32_t start[16]) {
    __m512i s;
    if (kind.size == 32) {
        s = _mm512_maskz_loadu_epi32(v16_mask(n_groups), x->sum);
    } else { /* only sums of 32 are kept */
        int32_t sum[16] = {0};
        for (size_t g = 0; g < n_groups; g++) {
            __m128i four = _mm_dpbusd_epi32(_mm_setzero_si128(), _mm_set1_epi8(1), _mm_loadu_si128((const void *)(x->q + 16 * g)));
            four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
            sum[g] = _mm_cvtsi128_si32(four) + _mm_extract_epi32(four, 1);
        }
        s = _mm512_loadu_si512(sum);
    }
    _mm512_store_si512(start, _mm512_mullo_epi32(s, _mm512_set1_epi32(-kind.offset)));
}

/* ---- sinks, as in panel_avx512.h ---- */

typedef struct moe_sink32 {
    moe_kind32 kind;
    moe_panel32 *panel; /* not NULL: store there */
    int group;          /* groups before this block, in the panel or from x on */
    moe_x32 x;          /* otherwise: multiply */
    const int32_t *start;
    __m512i part;
    __m512 acc;
} moe_sink32;

MOE_INLINE void moe_sink32_step(moe_sink32 *s, const int step, __m512i weights) {
    const int steps = s->kind.size / 4;
    if (s->panel) {
        _mm512_store_si512(s->panel->step[s->group * steps + step], weights);
        return;
    }
    if (step % steps == 0)
        s->part = s->kind.offset ? moe_broadcast_4(s->start + s->group + step / steps) : _mm512_setzero_si512();
    s->part = _mm512_dpbusd_epi32(s->part, weights, moe_broadcast_4(s->x.q + 4 * (s->group * steps + step)));
}

/* group g of the block is complete */
MOE_INLINE void moe_sink32_scale(moe_sink32 *s, const int g, __m512 d, __m512 m) {
    if (s->panel) {
        _mm512_store_ps(s->panel->d[s->group + g], d);
        if (s->kind.has_min) _mm512_store_ps(s->panel->m[s->group + g], m);
        return;
    }
    const int b = (s->group + g) * s->kind.size / 32;
    s->acc = _mm512_fmadd_ps(_mm512_cvtepi32_ps(s->part), _mm512_mul_ps(d, _mm512_set1_ps(s->x.d[b])), s->acc);
    if (s->kind.has_min) s->acc = _mm512_fmadd_ps(m, _mm512_set1_ps(s->x.s[b]), s->acc);
}

/* ---- panel x activation rows ---- */

typedef struct moe_tile32 {
    size_t n_in, i; /* activations a row; those before this panel */
    const uint8_t *x;
    size_t x_stride;
    float *out;
    size_t out_stride;
    __mmask16 rows;
} moe_tile32;

/* n activation rows (constant, 1..8) */
MOE_INLINE void moe_multiply_tile_32(const int n, const moe_kind32 kind, const moe_panel32 *p, size_t n_groups, const moe_tile32 *a,
                                     const moe_coming coming) {
    const int steps = kind.size / 4;
    int32_t start[MOE_TILE][16] __attribute__((aligned(64)));
    moe_x32 x[MOE_TILE];
    __m512i part[MOE_TILE];
    __m512 acc[MOE_TILE];
#pragma GCC unroll 8
    for (int t = 0; t < n; t++) {
        x[t] = moe_x32_at(a->n_in, a->x + (size_t)t * a->x_stride, a->i);
        if (kind.offset) moe_starts_32(kind, &x[t], n_groups, start[t]);
        acc[t] = a->i ? _mm512_maskz_loadu_ps(a->rows, a->out + (size_t)t * a->out_stride) : _mm512_setzero_ps();
    }
    const int8_t *q = x[0].q;
    for (size_t g = 0; g < n_groups; g++, q += kind.size) {
        const size_t b = g * (size_t)kind.size / 32;
        moe_fetch_bytes(coming.w + g * coming.step, coming.step);
#pragma GCC unroll 8
        for (int t = 0; t < n; t++) part[t] = kind.offset ? _mm512_set1_epi32(start[t][g]) : _mm512_setzero_si512();
#pragma GCC unroll 8
        for (int k = 0; k < steps; k++) {
            __m512i w = _mm512_load_si512(p->step[(int)g * steps + k]);
#pragma GCC unroll 8
            for (int t = 0; t < n; t++)
                part[t] = _mm512_dpbusd_epi32(part[t], w, moe_broadcast_4(q + (size_t)t * a->x_stride + 4 * k));
        }
        __m512 d = _mm512_load_ps(p->d[g]), m = _mm512_load_ps(p->m[g]);
#pragma GCC unroll 8
        for (int t = 0; t < n; t++) {
            acc[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(part[t]), _mm512_mul_ps(d, _mm512_set1_ps(x[t].d[b])), acc[t]);
            if (kind.has_min) acc[t] = _mm512_fmadd_ps(m, _mm512_set1_ps(x[t].s[b]), acc[t]);
        }
    }
#pragma GCC unroll 8
    for (int t = 0; t < n; t++) _mm512_mask_storeu_ps(a->out + (size_t)t * a->out_stride, a->rows, acc[t]);
}

/* all activation rows; `coming` meanwhile */
MOE_INLINE void moe_multiply_panel_32(const moe_kind32 kind, const moe_panel32 *p, size_t n_groups, size_t n_x, moe_tile32 a,
                                      moe_coming coming) {
    while (n_x) {
        size_t n = moe_next_tile(n_x);
        switch (n) {
        case 1: moe_multiply_tile_32(1, kind, p, n_groups, &a, coming); break;
        case 2: moe_multiply_tile_32(2, kind, p, n_groups, &a, coming); break;
        case 3: moe_multiply_tile_32(3, kind, p, n_groups, &a, coming); break;
        case 4: moe_multiply_tile_32(4, kind, p, n_groups, &a, coming); break;
        case 5: moe_multiply_tile_32(5, kind, p, n_groups, &a, coming); break;
        case 6: moe_multiply_tile_32(6, kind, p, n_groups, &a, coming); break;
        case 7: moe_multiply_tile_32(7, kind, p, n_groups, &a, coming); break;
        default: moe_multiply_tile_32(8, kind, p, n_groups, &a, coming); break;
        }
        n_x -= n;
        a.x += n * a.x_stride;
        a.out += n * a.out_stride;
        coming.step = 0;
    }
}

/* ---- rows ---- */

typedef struct moe_shape32 { /* constants of a type */
    moe_kind32 kind;
    size_t block, bytes;
} moe_shape32;

typedef void moe_unpack_rows_32(const moe_rows *block, moe_sink32 *s);
typedef void moe_panel_product_32(const moe_panel32 *p, size_t n_groups, size_t n_x, moe_tile32 a, moe_coming coming);

/* as moe_dot_panel */
MOE_INLINE __m512 moe_dot_panel_32(const moe_mul *m, const uint8_t *w, size_t w_stride, size_t n_rows, const uint8_t *next,
                                   const moe_shape32 shape, moe_unpack_rows_32 *unpack) {
    const size_t groups = shape.block / (size_t)shape.kind.size, n_blocks = m->n_in / shape.block;
    uint8_t copy[16 * 64];
    int32_t start[16] __attribute__((aligned(64)));
    moe_sink32 sink = {.kind = shape.kind, .x = moe_x32_at(m->n_in, m->x, 0), .start = start, .acc = _mm512_setzero_ps()};
    for (size_t b = 0; b < n_blocks; b++) {
        moe_rows rows = n_rows < 16 ? moe_short_panel(w + b * shape.bytes, w_stride, n_rows, shape.bytes, copy)
                                    : moe_rows_at(w + b * shape.bytes, w_stride, MOE_STREAM_AHEAD);
        size_t g = b * groups;
        sink.group = (int)(g % 16);
        if (sink.group == 0) {
            size_t left = n_blocks * groups - g;
            sink.x = moe_x32_at(m->n_in, m->x, b * shape.block);
            if (shape.kind.offset) moe_starts_32(shape.kind, &sink.x, left < 16 ? left : 16, start);
        }
        if (next || b % 2 == 0) moe_fetch_for_dot(&rows, next ? shape.bytes : 64, next, b);
        unpack(&rows, &sink);
    }
    return sink.acc;
}

/* More activation rows: 256 weights a panel. */
MOE_INLINE void moe_gemm_32(const moe_mul *m, const moe_shape32 shape, moe_unpack_rows_32 *unpack, moe_panel_product_32 *multiply) {
    const size_t groups = shape.block / (size_t)shape.kind.size, n_blocks = m->n_in / shape.block;
    moe_panel32 panel;
    uint8_t copy[16 * 64];
    moe_sink32 sink = {.kind = shape.kind, .panel = &panel};
    for (size_t r0 = 0; r0 < m->n_rows; r0 += 16) {
        size_t n = m->n_rows - r0 < 16 ? m->n_rows - r0 : 16;
        const uint8_t *w = (const uint8_t *)m->w + r0 * m->w_stride;
        moe_coming coming = moe_coming_after(m, r0, 16 * shape.bytes / groups);
        moe_tile32 a = {m->n_in, 0, m->x, m->x_stride, m->out + r0, m->out_stride, v16_mask(n)};
        for (size_t b = 0; b < n_blocks;) {
            size_t end = b + 256 / shape.block < n_blocks ? b + 256 / shape.block : n_blocks;
            a.i = b * shape.block;
            for (sink.group = 0; b < end; b++, sink.group += (int)groups) {
                moe_rows rows = n < 16 ? moe_short_panel(w + b * shape.bytes, m->w_stride, n, shape.bytes, copy)
                                       : moe_rows_at(w + b * shape.bytes, m->w_stride, 0);
                unpack(&rows, &sink);
            }
            multiply(&panel, (size_t)sink.group, m->n_x, a, coming);
            coming.w += (size_t)sink.group * coming.step;
        }
    }
}

#define MOE_KIND32_AVX512(KIND, size, offset, has_min)                                                                   \
    static const moe_kind32 kind_##KIND = {size, offset, has_min};                                                       \
    static MOE_NOINLINE void multiply_##KIND(const moe_panel32 *p, size_t n_groups, size_t n_x, moe_tile32 a,            \
                                             moe_coming coming) {                                                        \
        moe_multiply_panel_32(kind_##KIND, p, n_groups, n_x, a, coming);                                                       \
    }

#define MOE_DERIVE_AVX512_32(NAME, KIND, block)                                                                        \
    MOE_INLINE moe_shape32 shape_##NAME(void) { return (moe_shape32){kind_##KIND, block, sizeof(block_##NAME)}; }      \
    static __m512 dot_panel_##NAME(const moe_mul *m, const uint8_t *w, size_t w_stride, size_t n_rows,                  \
                                   const uint8_t *next) {                                                              \
        return moe_dot_panel_32(m, w, w_stride, n_rows, next, shape_##NAME(), rows_avx512_##NAME);                            \
    }                                                                                                                  \
    static void mul_mat_avx512_##NAME(const moe_mul *m) {                                                              \
        if (m->n_x == 1) moe_dot_streams(m, dot_panel_##NAME);                                                            \
        else moe_gemm_32(m, shape_##NAME(), rows_avx512_##NAME, multiply_##KIND);                                      \
    }

#endif
