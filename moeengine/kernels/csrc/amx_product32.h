/* AMX: products of the types with small blocks for many activation rows, in the manner of amx_product.h.
 *
 * The sums of a group of weights go to the running float at once, with a scale of their own. So a group is one
 * product of tiles, 32 (NVFP4: 16) weights deep, and its sums are stored; eight groups and one tile of activation
 * rows are a *batch*, whose sums go to `out` while the tiles of the next batch are multiplied. */
#ifndef MOE_AMX_PRODUCT32_H
#define MOE_AMX_PRODUCT32_H
#include "amx_product.h"

enum { MOE_AMX_GROUPS = 8 };

typedef struct moe_amx_batch {
    const moe_panel32 *panel;
    int n_groups;      /* of the panel, 1..8 */
    moe_amx_rows tile; /* x: the integers of the first group */
    size_t scales;     /* bytes from there to its float d */
    __mmask16 lanes;
    int is_first;
} moe_amx_batch;

typedef int32_t moe_amx_sums_32[MOE_AMX_GROUPS][16][16]; /* group, activation row, weight row */

/* n_groups groups of activation rows begin .. begin + n - 1 of the tile: sums -> out */
MOE_INLINE void moe_amx_add_32(const moe_kind32 kind, const moe_mul *m, const moe_amx_batch *b, const int n_groups,
                               const moe_amx_sums_32 sums, size_t begin, size_t n, float *restrict out) {
    const size_t x_stride = m->x_stride, out_stride = m->out_stride, s_bytes = m->n_in / 32 * sizeof(float);
    const uint8_t *scales = b->tile.x + b->scales + begin * x_stride;
    const __mmask16 lanes = b->lanes, old = b->is_first ? 0 : lanes;
    const int32_t *isum = sums[0][begin];
    __m512 w_d[MOE_AMX_GROUPS], w_m[MOE_AMX_GROUPS];
#pragma GCC unroll 8
    for (int g = 0; g < n_groups; g++) {
        w_d[g] = _mm512_load_ps(b->panel->d[g]);
        if (kind.has_min) w_m[g] = _mm512_load_ps(b->panel->m[g]);
    }
    out += begin * out_stride;
    for (size_t t = 0; t < n; t++, isum += 16, scales += x_stride, out += out_stride) {
        const float *d = (const void *)scales, *s = (const void *)(scales + s_bytes);
        __m512 acc = _mm512_maskz_loadu_ps(old, out);
#pragma GCC unroll 8
        for (int g = 0; g < n_groups; g++) {
            const int at = g * kind.size / 32;
            __m512 sum = _mm512_cvtepi32_ps(_mm512_load_si512(isum + g * 16 * 16));
            acc = _mm512_fmadd_ps(sum, _mm512_mul_ps(w_d[g], _mm512_set1_ps(d[at])), acc);
            if (kind.has_min) acc = _mm512_fmadd_ps(w_m[g], _mm512_set1_ps(s[at]), acc);
        }
        _mm512_mask_storeu_ps(out, lanes, acc);
    }
}

/* a quarter of the activation rows */
MOE_INLINE void moe_amx_add_part_32(const moe_kind32 kind, const moe_mul *m, const moe_amx_batch *b, const moe_amx_sums_32 sums,
                                    size_t part) {
    const size_t n = b->tile.n - b->tile.skip, begin = n * part / 4, end = n * (part + 1) / 4;
    if (b->n_groups == MOE_AMX_GROUPS)
        moe_amx_add_32(kind, m, b, MOE_AMX_GROUPS, sums, b->tile.skip + begin, end - begin, b->tile.out);
    else
        for (int g = 0; g < b->n_groups; g++) { /* the last few groups of a row: one after another */
            moe_amx_batch one = *b;
            moe_panel32 panel;
            _mm512_store_ps(panel.d[0], _mm512_load_ps(b->panel->d[g]));
            if (kind.has_min) _mm512_store_ps(panel.m[0], _mm512_load_ps(b->panel->m[g]));
            one.panel = &panel, one.scales += (size_t)(g * kind.size / 32) * sizeof(float), one.is_first = b->is_first && g == 0;
            moe_amx_add_32(kind, m, &one, 1, sums + g, b->tile.skip + begin, end - begin, b->tile.out);
        }
}
typedef void moe_amx_adder_32(const moe_mul *m, const moe_amx_batch *b, const moe_amx_sums_32 sums, size_t part);

/* Group g (constant) of the next batch is multiplied, the sums of an earlier group leave their tile, and a quarter of
 * the batch before goes to out after every second group. */
MOE_INLINE void moe_amx_group_32(const moe_kind32 kind, moe_amx_adder_32 *add, const moe_mul *m, const moe_amx_batch *before, const moe_amx_batch *next,
                                 const moe_amx_sums_32 old, moe_amx_sums_32 sums, const int g) {
    const int steps = kind.size / 4;
    if (g < next->n_groups) {
        tile_load(B_HIGH + g % 2, next->panel->step + g * steps, 64);
        tile_load(A + g % 2, next->tile.x + g * kind.size, m->x_stride);
        tile_zero(g % 4);
        tile_dp_ssd(g % 4, A + g % 2, B_HIGH + g % 2);
    }
    if (g >= 2 && g - 2 < next->n_groups) tile_store((g + 2) % 4, sums[g - 2][0], 64);
    if (g % 2) add(m, before, old, (size_t)g / 2);
}

MOE_INLINE void moe_amx_step_32(const moe_kind32 kind, moe_amx_adder_32 *add, const moe_mul *m, const moe_amx_batch *before, const moe_amx_batch *next,
                                const moe_amx_sums_32 old, moe_amx_sums_32 sums) {
    moe_amx_group_32(kind, add, m, before, next, old, sums, 0);
    moe_amx_group_32(kind, add, m, before, next, old, sums, 1);
    moe_amx_group_32(kind, add, m, before, next, old, sums, 2);
    moe_amx_group_32(kind, add, m, before, next, old, sums, 3);
    moe_amx_group_32(kind, add, m, before, next, old, sums, 4);
    moe_amx_group_32(kind, add, m, before, next, old, sums, 5);
    moe_amx_group_32(kind, add, m, before, next, old, sums, 6);
    moe_amx_group_32(kind, add, m, before, next, old, sums, 7);
    if (next->n_groups > 6) tile_store(2, sums[6][0], 64);
    if (next->n_groups > 7) tile_store(3, sums[7][0], 64);
}
typedef void moe_amx_stepper_32(const moe_mul *m, const moe_amx_batch *before, const moe_amx_batch *next,
                                const moe_amx_sums_32 old, moe_amx_sums_32 sums);

/* steps that depend on size and min only */
#define MOE_AMX_STEP_32(NAME, size, has_min)                                                                                   \
    static MOE_NOINLINE void add_amx_##NAME(const moe_mul *m, const moe_amx_batch *b, const moe_amx_sums_32 sums, size_t part) { \
        moe_amx_add_part_32((moe_kind32){size, 0, has_min}, m, b, sums, part);                                                 \
    }                                                                                                                          \
    static MOE_NOINLINE void step_amx_##NAME(const moe_mul *m, const moe_amx_batch *before, const moe_amx_batch *next,         \
                                             const moe_amx_sums_32 old, moe_amx_sums_32 sums) {                                \
        moe_amx_step_32((moe_kind32){size, 0, has_min}, add_amx_##NAME, m, before, next, old, sums);                           \
    }
MOE_AMX_STEP_32(groups_of_32, 32, 0)
MOE_AMX_STEP_32(groups_of_32_with_min, 32, 1)
MOE_AMX_STEP_32(groups_of_16, 16, 0)

/* out = w x */
static MOE_NOINLINE void moe_amx_product_32(const moe_mul *m, const moe_shape32 shape, moe_amx_unpack_32 *unpack) {
    moe_amx_stepper_32 *step = shape.kind.size == 16 ? step_amx_groups_of_16
                               : shape.kind.has_min  ? step_amx_groups_of_32_with_min
                                                     : step_amx_groups_of_32;
    const size_t tile_rows = moe_amx_tile_rows(m->n_x), size = (size_t)shape.kind.size, n_blocks = m->n_in / shape.block;
    uint8_t copy[16 * 64];
    moe_panel32 panels[2];
    moe_amx_sums_32 sums[2] __attribute__((aligned(64)));
    moe_amx_batch batches[2] = {{.n_groups = 0}};
    const moe_amx_batch none = {.n_groups = 0};
    moe_tile_config saved;
    size_t n_panels = 0, n_batches = 0; /* the latest batch is number n_batches % 2 */
    moe_amx_configure(tile_rows, size, &saved);
    for (size_t r0 = 0; r0 < m->n_rows; r0 += 16) {
        const size_t n = m->n_rows - r0 < 16 ? m->n_rows - r0 : 16;
        const uint8_t *w = (const uint8_t *)m->w + r0 * m->w_stride, *coming = moe_rows_to_come(m, r0);
        for (size_t i = 0; i < m->n_in; i += MOE_AMX_GROUPS * size) {
            moe_panel32 *panel = &panels[n_panels++ % 2];
            int n_groups = 0;
            for (size_t b = i / shape.block; n_groups < MOE_AMX_GROUPS && b < n_blocks; b++, n_groups += (int)(shape.block / size)) {
                moe_rows rows = n < 16 ? moe_short_panel(w + b * shape.bytes, m->w_stride, n, shape.bytes, copy)
                                       : moe_rows_at(w + b * shape.bytes, m->w_stride, 0);
                if (coming) moe_fetch_bytes(coming + 16 * shape.bytes * b, 16 * shape.bytes);
                unpack(&rows, n_groups, panel);
            }
            for (size_t t = 0; t < m->n_x; t += tile_rows) {
                const size_t old = n_batches++ % 2;
                batches[!old] = (moe_amx_batch){panel, n_groups, moe_amx_rows_at(m, tile_rows, t, i, r0),
                                                m->n_in - i + i / 32 * sizeof(float), v16_mask(n), i == 0};
                step(m, &batches[old], &batches[!old], (const int32_t (*)[16][16])sums[old], sums[!old]);
            }
        }
    }
    const size_t last = n_batches % 2;
    step(m, &batches[last], &none, (const int32_t (*)[16][16])sums[last], sums[!last]);
    moe_amx_restore(&saved);
}

#define MOE_AMX_PRODUCT_32(id, NAME, KIND)                                              \
    static void mul_mat_amx_##NAME(const moe_mul *m) {                                  \
        if (m->n_x < MOE_AMX_MIN_ROWS) moe_isa_avx512.types[id].mul_mat(m);             \
        else moe_amx_product_32(m, shape_##NAME(), moe_amx_unpack_##NAME);              \
    }

#endif
