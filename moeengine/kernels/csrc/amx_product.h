/* AMX: products of the 256-weight types for many activation rows (amx_planes.h tells the layout).
 *
 * Weights are unpacked 16 rows x 256 at a time. Activation rows are tiles of up to 16, as equal as can be and all of the same
 * size, so that one configuration serves a whole product; the last tile may begin within the one before, whose
 * rows are then computed twice and used once. Two such tiles are a *group*: with two planes their sums are four tiles, enough
 * chains of products for the tile unit to be busy.
 *
 * The sums of a group stay in tiles until the next group is started, and go to `out` while that one is multiplied.
 * So the tile unit works while vectors are unpacked and while sums are put together, also from one block to the
 * next and from one 16 rows to the next. */
#ifndef MOE_AMX_PRODUCT_H
#define MOE_AMX_PRODUCT_H
#include "amx_planes.h"
#include "amx_tiles.h"

enum { C_HIGH, C_LOW, C_HIGH_2, C_LOW_2, A, A_2, B_HIGH, B_LOW }; /* tiles; one plane: the high ones */

/* activation rows of one tile */
typedef struct moe_amx_rows {
    const uint8_t *x; /* block_x_q8_K of the first one */
    float *out;       /* of the first one and the 16 weight rows */
    size_t skip, n;   /* rows skip .. n-1 count */
} moe_amx_rows;

typedef struct moe_amx_group {
    const moe_panel *panel;
    const uint8_t (*high)[64], (*low)[64]; /* 64 steps each */
    moe_amx_rows tile[2];                  /* there may be one only: the second has n 0 */
    __mmask16 lanes;                       /* weight rows that exist */
    int is_first;                          /* block: out holds nothing yet */
} moe_amx_group;

typedef int32_t moe_amx_sums[2][32][16]; /* plane, row of two tiles, weight row */

/* the exact integer sums of one activation row */
MOE_INLINE __m512i moe_amx_isum(const moe_kind kind, const enum moe_split split, const int32_t *high, const int32_t *low,
                                const block_x_q8_K *x) {
    const int offset = split == MOE_SPLIT_WHOLE ? 127 : kind.offset;
    __m512i sum = _mm512_load_si512(high);
    if (moe_two_planes(split))
        return _mm512_add_epi32(_mm512_slli_epi32(sum, (unsigned)moe_high_shift(split)), _mm512_load_si512(low));
    return offset ? _mm512_sub_epi32(sum, _mm512_set1_epi32(offset * x->sum)) : sum;
}

/* sums -> out, n activation rows; x, out and the sums are those of the first */
MOE_INLINE void moe_amx_add(const moe_kind kind, const enum moe_split split, const moe_mul *m, const moe_panel *panel,
                            const uint8_t *x, const int32_t (*high)[16], const int32_t (*low)[16], size_t n,
                            __mmask16 lanes, int is_first, float *restrict out) {
    const size_t x_stride = m->x_stride, out_stride = m->out_stride;
    moe_panel last; /* a copy that no store to out can change: it stays in registers */
    _mm512_store_ps(last.d, _mm512_load_ps(panel->d));
    if (kind.n_mins) _mm512_store_ps(last.dmin, _mm512_load_ps(panel->dmin));
    for (int k = 0; k < kind.n_mins / 2; k++) _mm512_store_si512(last.mins[k], _mm512_load_si512(panel->mins[k]));
    for (size_t t = 0; t < n; t++, x += x_stride, out += out_stride) {
        const block_x_q8_K *row = (const void *)x;
        __m512 acc = _mm512_maskz_loadu_ps(is_first ? 0 : lanes, out);
        acc = moe_add_block(kind, &last, row, moe_amx_isum(kind, split, high[t], low[t], row), acc);
        _mm512_mask_storeu_ps(out, lanes, acc);
    }
}

/* Half of the rows of one tile of g: the part-th of four parts. */
MOE_INLINE void moe_amx_add_part(const moe_kind kind, const enum moe_split split, const moe_mul *m, const moe_amx_group *g,
                                 const moe_amx_sums sums, size_t part) {
    const moe_amx_rows *tile = &g->tile[part / 2];
    size_t n = tile->n - tile->skip, begin = tile->skip + (part % 2 ? n / 2 : 0), in_sums = part / 2 * 16 + begin;
    moe_amx_add(kind, split, m, g->panel, tile->x + begin * m->x_stride, sums[0] + in_sums, sums[1] + in_sums,
                part % 2 ? n - n / 2 : n / 2, g->lanes, g->is_first, tile->out + begin * m->out_stride);
}

MOE_INLINE void moe_amx_dp(const int b_signed, const int c, const int a, const int b) {
    if (b_signed) tile_dp_ssd(c, a, b);
    else tile_dp_sud(c, a, b);
}

/* 64 weights x two tiles of activations, or one */
MOE_INLINE void moe_amx_multiply(const enum moe_split split, const moe_amx_group *g, size_t x_stride, size_t part) {
    const size_t chunk = offsetof(block_x_q8_K, q) + 64 * part;
    tile_load(B_HIGH, g->high + 16 * part, 64);
    tile_load(A, g->tile[0].x + chunk, x_stride);
    moe_amx_dp(moe_high_signed(split), C_HIGH, A, B_HIGH);
    if (moe_two_planes(split)) {
        tile_load(B_LOW, g->low + 16 * part, 64);
        moe_amx_dp(moe_low_signed(split), C_LOW, A, B_LOW);
    }
    if (!g->tile[1].n) return;
    tile_load(A_2, g->tile[1].x + chunk, x_stride);
    moe_amx_dp(moe_high_signed(split), C_HIGH_2, A_2, B_HIGH);
    if (moe_two_planes(split)) moe_amx_dp(moe_low_signed(split), C_LOW_2, A_2, B_LOW);
}

/* The sums of `before` leave the tiles and are added to its out; those of `next`, if there is one, are started. */
MOE_INLINE void moe_amx_step(const moe_kind kind, const enum moe_split split, const moe_mul *m, const moe_amx_group *before,
                             const moe_amx_group *next, moe_amx_sums sums) {
    const int two_planes = moe_two_planes(split);
    const moe_amx_group old = *before; /* copies, which no store to out can change */
    const size_t x_stride = m->x_stride;
    tile_store(C_HIGH, sums[0][0], 64), tile_zero(C_HIGH);
    if (two_planes) tile_store(C_LOW, sums[1][0], 64), tile_zero(C_LOW);
    if (old.tile[1].n) {
        tile_store(C_HIGH_2, sums[0][16], 64);
        if (two_planes) tile_store(C_LOW_2, sums[1][16], 64);
    }
    tile_zero(C_HIGH_2), tile_zero(C_LOW_2);
#pragma GCC unroll 4
    for (size_t part = 0; part < 4; part++) {
        if (next) moe_amx_multiply(split, next, x_stride, part);
        moe_amx_add_part(kind, split, m, &old, (const int32_t (*)[32][16])sums, part);
    }
}
typedef void moe_amx_type_step(const moe_mul *m, const moe_amx_group *before, const moe_amx_group *next, moe_amx_sums sums);

/* Configures the tiles of this thread: A with x_bytes a row, B for as many. `saved` is what they were: whoever else uses tiles in this thread may count on its
 * configuration, though not on what is in the tiles, which the System V ABI leaves to the caller. */
MOE_INLINE void moe_amx_configure(size_t tile_rows, size_t x_bytes, moe_tile_config *saved) {
    moe_tile_config config = {.palette = 1};
    for (int t = 0; t < 8; t++) {
        config.colsb[t] = t == A || t == A_2 ? (uint16_t)x_bytes : 64;
        config.rows[t] = t < B_HIGH ? (uint8_t)tile_rows : (uint8_t)(x_bytes / 4);
    }
    tile_config_store(saved);
    tile_config_load(&config);
}

/* Tiles in use cost time at every switch of threads, and keep a core from its deepest sleep. */
MOE_INLINE void moe_amx_restore(const moe_tile_config *saved) {
    if (saved->palette) tile_config_load(saved);
    else tile_release();
}

/* activation rows a tile: as few tiles as can be, as equal as can be */
MOE_INLINE size_t moe_amx_tile_rows(size_t n_x) {
    const size_t n_tiles = (n_x + 15) / 16;
    return (n_x + n_tiles - 1) / n_tiles;
}

/* the tile for activation rows t and on; x from byte x_offset on, weight rows r0 and on */
MOE_INLINE moe_amx_rows moe_amx_rows_at(const moe_mul *m, size_t tile_rows, size_t t, size_t x_offset, size_t r0) {
    if (t >= m->n_x) return (moe_amx_rows){0};
    const size_t first = t < m->n_x - tile_rows ? t : m->n_x - tile_rows;
    return (moe_amx_rows){(const uint8_t *)m->x + first * m->x_stride + x_offset, m->out + first * m->out_stride + r0,
                          t - first, tile_rows};
}

/* out = w x; bytes: of a block */
static MOE_NOINLINE void moe_amx_product(const moe_mul *m, size_t bytes, int steps_are_the_plane, moe_amx_unpack *unpack,
                                         moe_amx_type_step *step) {
    const size_t tile_rows = moe_amx_tile_rows(m->n_x);
    uint8_t copy[16 * 256];
    moe_panel panels[2]; /* sums wait for their scales while the next block is unpacked */
    moe_planes planes;
    moe_amx_sums sums __attribute__((aligned(64)));
    moe_amx_group groups[2] = {{.panel = panels}}, *before = groups, *next = groups + 1;
    moe_tile_config saved;
    size_t n_panels = 0;
    moe_amx_configure(tile_rows, 64, &saved);
    for (size_t r0 = 0; r0 < m->n_rows; r0 += 16) {
        size_t n = m->n_rows - r0 < 16 ? m->n_rows - r0 : 16;
        const uint8_t *w = (const uint8_t *)m->w + r0 * m->w_stride, *coming = moe_rows_to_come(m, r0);
        for (size_t b = 0; b < m->n_in / 256; b++, w += bytes) {
            moe_rows rows = n < 16 ? moe_short_panel(w, m->w_stride, n, bytes, copy) : moe_rows_at(w, m->w_stride, 0);
            moe_panel *panel = &panels[n_panels++ % 2];
            if (coming) moe_fetch_bytes(coming + 16 * bytes * b, 16 * bytes);
            unpack(&rows, panel, &planes);
            for (size_t t = 0; t < m->n_x; t += 2 * tile_rows) {
                const size_t at = b * sizeof(block_x_q8_K);
                *next = (moe_amx_group){panel, steps_are_the_plane ? panel->step : planes.step[0], planes.step[1],
                                        {moe_amx_rows_at(m, tile_rows, t, at, r0), moe_amx_rows_at(m, tile_rows, t + tile_rows, at, r0)},
                                        v16_mask(n), b == 0};
                step(m, before, next, sums);
                moe_amx_group *free_one = before;
                before = next, next = free_one;
            }
        }
    }
    step(m, before, NULL, sums);
    moe_amx_restore(&saved);
}

/* Fewer activation rows are multiplied as on AVX-512: the planes would not pay. */
#ifndef MOE_AMX_MIN_ROWS
#define MOE_AMX_MIN_ROWS 8
#endif

#define MOE_AMX_PRODUCT(id, NAME, KIND, SPLIT)                                                                            \
    _Static_assert(scales_first_##KIND == MOE_SCALES_FIRST_##NAME, "order of float sums of " #NAME);                      \
    static MOE_NOINLINE void step_amx_##NAME(const moe_mul *m, const moe_amx_group *before, const moe_amx_group *next,    \
                                             moe_amx_sums sums) {                                                         \
        moe_amx_step(kind_##KIND, SPLIT, m, before, next, sums);                                                          \
    }                                                                                                                     \
    static void mul_mat_amx_##NAME(const moe_mul *m) {                                                                    \
        if (m->n_x < MOE_AMX_MIN_ROWS) moe_isa_avx512.types[id].mul_mat(m);                                               \
        else moe_amx_product(m, sizeof(block_##NAME), SPLIT == MOE_SPLIT_NONE, moe_amx_unpack_##NAME, step_amx_##NAME);   \
    }

#endif
