/* AVX-512: products of the 256-weight types.
 *
 * More than one activation row: the panel is unpacked once
 * a block and multiplied with eight activation rows at a time, `out` holding the running sums. Both take the sums
 * in the order of moe_table.h. */
#ifndef MOE_GEMM_AVX512_H
#define MOE_GEMM_AVX512_H
#include "dot_avx512.h"

#define MOE_NOINLINE __attribute__((noinline))

#define MOE_TILE 8 /* most activation rows of a kernel: 8 + 8 accumulators and a step stay in registers */

/* Where the activations of a tile are, block by block */
typedef struct moe_tile {
    const uint8_t *x; /* block_x_q8_K of the first row */
    size_t x_stride;
    float *out;
    size_t out_stride;
    __mmask16 rows; /* of the panel that exist */
} moe_tile;

MOE_INLINE const block_x_q8_K *moe_tile_x(const moe_tile *a, size_t t) { return (const void *)(a->x + t * a->x_stride); }

/* One block of one activation row, as moe_table.h says */
MOE_INLINE __m512 moe_add_block(const moe_kind kind, const moe_panel *p, const block_x_q8_K *x, __m512i isum, __m512 acc) {
    __m512i msum = _mm512_setzero_si512();
    if (kind.n_mins) {
        const int16_t *sums = kind.n_mins == 8 ? x->sum32 : x->sum16;
#pragma GCC unroll 8
        for (int k = 0; k < kind.n_mins / 2; k++)
            msum = _mm512_dpwssd_epi32(msum, _mm512_load_si512(p->mins[k]), moe_broadcast_4(sums + 2 * k));
    }
    return moe_finish_block(kind, isum, msum, _mm512_load_ps(p->d), _mm512_load_ps(p->dmin), x, acc);
}

/* Row t of the tile to come, brought near: rows are far apart, so the CPU does not foresee them. */
MOE_INLINE void moe_fetch_tile_row(const moe_tile *next, size_t t) {
    const char *x = (const char *)next->x + t * next->x_stride;
    _mm_prefetch(x, _MM_HINT_T0);
#pragma GCC unroll 4
    for (size_t i = 0; i < 256; i += 64) _mm_prefetch(x + offsetof(block_x_q8_K, q) + i, _MM_HINT_T0);
    moe_fetch_for_writing(next->out + t * next->out_stride);
}

/* Parts a tile is multiplied in: groups where they have scales of their own */
MOE_INLINE size_t moe_parts(const moe_kind kind) { return kind.n_groups > 1 ? (size_t)kind.n_groups : 8; }

/* Weights to come, `step` bytes of them a part of a tile: fetched all at once they would keep the buffers busy that the next loads
 * need. */
typedef struct moe_coming {
    const uint8_t *w;
    size_t step;
} moe_coming;

/* what comes after the 16 rows at r0; nobody knows: nothing is fetched */
MOE_INLINE moe_coming moe_coming_after(const moe_mul *m, size_t r0, size_t step) {
    const uint8_t *w = moe_rows_to_come(m, r0);
    return w ? (moe_coming){w, step} : (moe_coming){m->w, 0};
}

/* n activation rows (constant, 1..8) x one panel; is_first: out holds nothing yet; next: the tile to come */
MOE_INLINE void moe_multiply_tile(const int n, const moe_kind kind, const moe_panel *p, const moe_tile *a, const moe_tile *next,
                                  const moe_coming coming, int is_first) {
    const int scaled = kind.n_groups > 1, n_parts = (int)moe_parts(kind), steps = 64 / n_parts;
    int32_t start[MOE_TILE][16] __attribute__((aligned(64)));
    __m512i part[MOE_TILE], isum[MOE_TILE];
#pragma GCC unroll 8
    for (int t = 0; t < n; t++) {
        if (kind.offset) _mm512_store_si512(start[t], moe_group_starts(kind, moe_tile_x(a, (size_t)t)));
        isum[t] = kind.offset && !scaled ? _mm512_load_si512(start[t]) : _mm512_setzero_si512();
    }
    for (int g = 0; g < n_parts; g++) {
        const uint8_t *x = a->x + offsetof(block_x_q8_K, q) + 4 * steps * g;
        if (g < n) moe_fetch_tile_row(next, (size_t)g);
        moe_fetch_bytes(coming.w + (size_t)g * coming.step, coming.step);
#pragma GCC unroll 8
        for (int t = 0; t < n; t++)
            part[t] = !scaled ? isum[t] : kind.offset ? _mm512_set1_epi32(start[t][g]) : _mm512_setzero_si512();
#pragma GCC unroll 8
        for (int k = 0; k < steps; k++) {
            __m512i w = _mm512_load_si512(p->step[g * steps + k]);
#pragma GCC unroll 8
            for (int t = 0; t < n; t++)
                part[t] = _mm512_dpbusd_epi32(part[t], w, moe_broadcast_4(x + (size_t)t * a->x_stride + 4 * k));
        }
        __m512i scale = _mm512_load_si512(p->scale[g]);
#pragma GCC unroll 8
        for (int t = 0; t < n; t++)
            isum[t] = scaled ? _mm512_add_epi32(isum[t], _mm512_mullo_epi32(part[t], scale)) : part[t];
    }
#pragma GCC unroll 8
    for (int t = 0; t < n; t++) {
        float *out = a->out + (size_t)t * a->out_stride;
        __m512 acc = is_first ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(a->rows, out);
        _mm512_mask_storeu_ps(out, a->rows, moe_add_block(kind, p, moe_tile_x(a, (size_t)t), isum[t], acc));
    }
}

/* How many of n_x rows come next: tiles of 4 to 8 rows, since 1 to 3 take as long as 4 */
MOE_INLINE size_t moe_next_tile(size_t n_x) { return n_x >= 12 ? 8 : n_x > 8 ? (n_x + 1) / 2 : n_x; }

/* all activation rows x one panel */
MOE_INLINE void moe_multiply_panel(const moe_kind kind, const moe_panel *p, size_t n_x, moe_tile a, moe_coming coming, int is_first) {
    const moe_tile first = {a.x + sizeof(block_x_q8_K), a.x_stride, a.out, a.out_stride, a.rows}; /* of the next block */
    while (n_x) {
        size_t n = moe_next_tile(n_x);
        moe_tile next = {a.x + n * a.x_stride, a.x_stride, a.out + n * a.out_stride, a.out_stride, a.rows};
        n_x -= n;
        if (!n_x) next = first;
        switch (n) {
        case 1: moe_multiply_tile(1, kind, p, &a, &next, coming, is_first); break;
        case 2: moe_multiply_tile(2, kind, p, &a, &next, coming, is_first); break;
        case 3: moe_multiply_tile(3, kind, p, &a, &next, coming, is_first); break;
        case 4: moe_multiply_tile(4, kind, p, &a, &next, coming, is_first); break;
        case 5: moe_multiply_tile(5, kind, p, &a, &next, coming, is_first); break;
        case 6: moe_multiply_tile(6, kind, p, &a, &next, coming, is_first); break;
        case 7: moe_multiply_tile(7, kind, p, &a, &next, coming, is_first); break;
        default: moe_multiply_tile(8, kind, p, &a, &next, coming, is_first); break;
        }
        a = next;
        coming.step = 0;
    }
}

typedef void moe_unpack_rows(const moe_rows *block, moe_sink *s);
typedef void moe_panel_product(const moe_panel *p, size_t n_x, moe_tile a, moe_coming coming, int is_first);

/* moe_dot_panel for types without a way of their own: the steps of the panel, multiplied at once */
MOE_INLINE __m512 moe_sink_panel(const moe_mul *m, const uint8_t *w, size_t w_stride, size_t n_rows, const uint8_t *next,
                                 const moe_kind kind, const size_t bytes, moe_unpack_rows *unpack) {
    uint8_t copy[16 * 256];
    int32_t start[16] __attribute__((aligned(64)));
    moe_sink sink = {.kind = kind, .x = m->x, .start = start};
    sink.isum = sink.msum = _mm512_setzero_si512();
    sink.acc = _mm512_setzero_ps();
    for (size_t b = 0; b < m->n_in / 256; b++, sink.x++) {
        moe_rows rows = n_rows < 16 ? moe_short_panel(w + b * bytes, w_stride, n_rows, bytes, copy)
                                    : moe_rows_at(w + b * bytes, w_stride, MOE_STREAM_AHEAD);
        if (kind.offset) _mm512_store_si512(start, moe_group_starts(kind, sink.x));
        moe_fetch_for_dot(&rows, bytes, next, b);
        unpack(&rows, &sink);
    }
    return sink.acc;
}

/* out = w x for more activation rows; all but m are constants */
MOE_INLINE void moe_gemm_256(const moe_mul *m, const moe_kind kind, const size_t bytes, moe_unpack_rows *unpack,
                             moe_panel_product *multiply) {
    moe_panel panel;
    uint8_t copy[16 * 256];
    moe_sink sink = {.kind = kind, .panel = &panel};
    for (size_t r0 = 0; r0 < m->n_rows; r0 += 16) {
        size_t n = m->n_rows - r0 < 16 ? m->n_rows - r0 : 16;
        const uint8_t *w = (const uint8_t *)m->w + r0 * m->w_stride;
        moe_coming coming = moe_coming_after(m, r0, 16 * bytes / moe_parts(kind));
        moe_tile a = {m->x, m->x_stride, m->out + r0, m->out_stride, v16_mask(n)};
        for (size_t b = 0; b < m->n_in / 256; b++, a.x += sizeof(block_x_q8_K)) {
            moe_rows rows = n < 16 ? moe_short_panel(w + b * bytes, m->w_stride, n, bytes, copy)
                                   : moe_rows_at(w + b * bytes, m->w_stride, 0);
            unpack(&rows, &sink);
            multiply(&panel, m->n_x, a, coming, b == 0);
            coming.w += moe_parts(kind) * coming.step;
        }
    }
}

/* A kind of steps and its panel product, shared by the types of that kind. */
#define MOE_KIND_AVX512(KIND, n_groups, offset, n_mins, whole_mins, scales_first, format)                               \
    static const moe_kind kind_##KIND = {n_groups, offset, n_mins, whole_mins, scales_first, format};                   \
    enum { scales_first_##KIND = scales_first };                                                                        \
    __attribute__((noinline, unused)) static void multiply_##KIND(const moe_panel *p, size_t n_x, moe_tile a,             \
                                                                  moe_coming coming, int is_first) {                    \
        moe_multiply_panel(kind_##KIND, p, n_x, a, coming, is_first);                                                   \
    }

/* DOT: a function of dot_avx512.h, for one activation row; ORDER: moe_dot_streams or moe_dot_neighbours. The kind may
 * differ between the two ways, where a panel pays for more unpacking. */
#define MOE_DERIVE_AVX512(NAME, DOT_KIND, PANEL_KIND, ORDER, PANEL, FUNCTION)                                           \
    _Static_assert(scales_first_##DOT_KIND == MOE_SCALES_FIRST_##NAME, "order of float sums of " #NAME);                \
    _Static_assert(scales_first_##PANEL_KIND == MOE_SCALES_FIRST_##NAME, "order of float sums of " #NAME);              \
    static __m512 dot_panel_##NAME(const moe_mul *m, const uint8_t *w, size_t w_stride, size_t n_rows,                  \
                                   const uint8_t *next) {                                                              \
        return PANEL(m, w, w_stride, n_rows, next, kind_##DOT_KIND, sizeof(block_##NAME), FUNCTION);                    \
    }                                                                                                                  \
    static void mul_mat_avx512_##NAME(const moe_mul *m) {                                                              \
        if (m->n_x == 1) ORDER(m, dot_panel_##NAME);                                                                   \
        else moe_gemm_256(m, kind_##PANEL_KIND, sizeof(block_##NAME), rows_avx512_##NAME, multiply_##PANEL_KIND);      \
    }

/* a type with dots_avx512_<NAME> of its own for one activation row */
#define MOE_DERIVE_AVX512_DOT(NAME, DOT_KIND, PANEL_KIND, ORDER) \
    MOE_DERIVE_AVX512(NAME, DOT_KIND, PANEL_KIND, ORDER, moe_dot_panel, dots_avx512_##NAME)
/* a type without */
#define MOE_DERIVE_AVX512_256(NAME, DOT_KIND, PANEL_KIND) \
    MOE_DERIVE_AVX512(NAME, DOT_KIND, PANEL_KIND, moe_dot_streams, moe_sink_panel, rows_avx512_##NAME)

#endif
