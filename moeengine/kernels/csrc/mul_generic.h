/* Dequantizing and matrix products derived from a type's `unpack`, in plain C for every instruction
 * set.
 *
 * Rows are taken in panels: a block of each row is unpacked once and multiplied with all activation
 * rows; `out` holds the running sums. One row or many, the sums are those of moe_table.h. */
#ifndef MOE_MUL_GENERIC_H
#define MOE_MUL_GENERIC_H
#include "quants/all.h"

#define MOE_PANEL \
    8 /* rows unpacked at a time; a panel of 256-blocks stays in the first-level cache */

/* ---- 256-weight types ---- */

typedef void moe_unpack256(const void *block, moe_block256 *u);

MOE_INLINE void moe_dequantize256(size_t n, const void *w, float *y, size_t bytes, int has_min,
                                  moe_unpack256 *unpack) {
    moe_block256 u;
    for (size_t b = 0; b < n / 256; b++, y += 256) {
        unpack((const uint8_t *)w + b * bytes, &u);
        for (size_t g = 0; g < 16; g++) {
            float d = u.d * (float)u.sc[g], m = has_min ? u.dmin * (float)u.mn[g] : 0.0f;
            for (size_t i = 16 * g; i < 16 * g + 16; i++)
                y[i] = has_min ? d * (float)u.q[i] - m : d * (float)u.q[i];
        }
    }
}

/* sum_g sc_g * sum_k q_k * y_k, exact */
MOE_INLINE int32_t moe_dot256(const moe_block256 *u, const int8_t *y) {
    int32_t sum = 0;
    for (size_t g = 0; g < 16; g++) {
        int32_t part = 0;
        for (size_t k = 16 * g; k < 16 * g + 16; k++) part += u->q[k] * y[k];
        sum += u->sc[g] * part;
    }
    return sum;
}

MOE_INLINE void moe_mul256(const moe_mul *m, size_t bytes, int has_min, int scales_first,
                           moe_unpack256 *unpack) {
    moe_block256 u[MOE_PANEL];
    for (size_t r0 = 0; r0 < m->n_rows; r0 += MOE_PANEL) {
        size_t n = m->n_rows - r0 < MOE_PANEL ? m->n_rows - r0 : MOE_PANEL;
        const uint8_t *w = (const uint8_t *)m->w + r0 * m->w_stride;
        for (size_t b = 0; b < m->n_in / 256; b++) {
            for (size_t r = 0; r < n; r++) unpack(w + r * m->w_stride + b * bytes, &u[r]);
            for (size_t t = 0; t < m->n_x; t++) {
                const block_x_q8_K *x =
                    (const block_x_q8_K *)((const uint8_t *)m->x + t * m->x_stride) + b;
                float *out = m->out + t * m->out_stride + r0;
                for (size_t r = 0; r < n; r++) {
                    float acc = b ? out[r] : 0.0f, isum = (float)moe_dot256(&u[r], x->q);
                    int32_t msum = 0;
                    for (size_t g = 0; g < 16 && has_min; g++) msum += u[r].mn[g] * x->sum16[g];
                    if (scales_first) {
                        acc = f32_madd(isum, u[r].d * x->d, acc);
                        if (has_min) acc = f32_madd(-(float)msum, u[r].dmin * x->d, acc);
                    } else {
                        float sum = isum * u[r].d;
                        if (has_min) sum = f32_madd(-(float)msum, u[r].dmin, sum);
                        acc = f32_madd(sum, x->d, acc);
                    }
                    out[r] = acc;
                }
            }
        }
    }
}

#define MOE_DERIVE_256(NAME)                                                                 \
    static void dequantize_row_##NAME(size_t n, const void *w, float *y) {                   \
        moe_dequantize256(n, w, y, sizeof(block_##NAME), MOE_HAS_MIN_##NAME, unpack_##NAME); \
    }                                                                                        \
    static void mul_mat_##NAME(const moe_mul *m) {                                           \
        moe_mul256(m, sizeof(block_##NAME), MOE_HAS_MIN_##NAME, MOE_SCALES_FIRST_##NAME,     \
                   unpack_##NAME);                                                           \
    }

MOE_DERIVE_256(Q2_K)
MOE_DERIVE_256(Q3_K)
MOE_DERIVE_256(Q4_K)
MOE_DERIVE_256(Q5_K)
MOE_DERIVE_256(Q6_K)
MOE_DERIVE_256(IQ1_S)
MOE_DERIVE_256(IQ1_M)
MOE_DERIVE_256(IQ2_XXS)
MOE_DERIVE_256(IQ2_XS)
MOE_DERIVE_256(IQ2_S)
MOE_DERIVE_256(IQ3_XXS)
MOE_DERIVE_256(IQ3_S)
MOE_DERIVE_256(IQ4_XS)
MOE_DERIVE_256(TQ1_0)
MOE_DERIVE_256(TQ2_0)

/* ---- types with small blocks; `size` weights a group ---- */

typedef void moe_unpack_group(const void *row, size_t i, moe_group *u);

MOE_INLINE void moe_dequantize_groups(size_t n, const void *w, float *y, size_t size, int has_min,
                                      moe_unpack_group *unpack) {
    moe_group u;
    for (size_t i = 0; i < n / size; i++, y += size) {
        unpack(w, i, &u);
        for (size_t k = 0; k < size; k++)
            y[k] = has_min ? u.d * (float)u.q[k] + u.m : u.d * (float)u.q[k];
    }
}

MOE_INLINE void moe_mul_groups(const moe_mul *m, size_t size, int has_min,
                               moe_unpack_group *unpack) {
    moe_group u[MOE_PANEL];
    for (size_t r0 = 0; r0 < m->n_rows; r0 += MOE_PANEL) {
        size_t n = m->n_rows - r0 < MOE_PANEL ? m->n_rows - r0 : MOE_PANEL;
        const uint8_t *w = (const uint8_t *)m->w + r0 * m->w_stride;
        for (size_t i = 0; i < m->n_in / size; i++) {
            for (size_t r = 0; r < n; r++) unpack(w + r * m->w_stride, i, &u[r]);
            for (size_t t = 0; t < m->n_x; t++) {
                moe_x_q8_0 x = moe_x_q8_0_at(m->n_in, (const uint8_t *)m->x + t * m->x_stride);
                float *out = m->out + t * m->out_stride + r0, d = x.d[i * size / 32];
                for (size_t r = 0; r < n; r++) {
                    int32_t sum = 0;
                    for (size_t k = 0; k < size; k++) sum += u[r].q[k] * x.q[i * size + k];
                    float acc = i ? out[r] : 0.0f;
                    acc = f32_madd((float)sum, u[r].d * d, acc);
                    out[r] = has_min ? f32_madd(u[r].m, x.s[i * size / 32], acc) : acc;
                }
            }
        }
    }
}

#define MOE_DERIVE_GROUPS(NAME, size)                                            \
    static void dequantize_row_##NAME(size_t n, const void *w, float *y) {       \
        moe_dequantize_groups(n, w, y, size, MOE_HAS_MIN_##NAME, unpack_##NAME); \
    }                                                                            \
    static void mul_mat_##NAME(const moe_mul *m) {                               \
        moe_mul_groups(m, size, MOE_HAS_MIN_##NAME, unpack_##NAME);              \
    }

MOE_DERIVE_GROUPS(Q4_0, 32)
MOE_DERIVE_GROUPS(Q4_1, 32)
MOE_DERIVE_GROUPS(Q8_0, 32)
MOE_DERIVE_GROUPS(IQ4_NL, 32)
MOE_DERIVE_GROUPS(MXFP4, 32)
MOE_DERIVE_GROUPS(NVFP4, 16)

/* ---- float types ---- */

typedef v16f moe_load16(const void *row, size_t k, size_t n);

/* rows of weights and of activations multiplied at a time: 32 registers of 16 lanes, or 16 of 8 */
#if MOE_SIMD_AVX512
#define MOE_FLOAT_ROWS 4
#define MOE_FLOAT_TILE 4
#else
#define MOE_FLOAT_ROWS 2
#define MOE_FLOAT_TILE 3
#endif
#define MOE_FLOAT_X_BLOCK 48 /* activation rows that pass all weights at a time: they stay in L2 \
                              */

MOE_INLINE void moe_dequantize_floats(size_t n, const void *w, float *y, moe_load16 *load) {
    for (size_t k = 0; k < n; k += 16) {
        size_t now = n - k < 16 ? n - k : 16;
        v16_store_n(y + k, load(w, k, now), now);
    }
}

/* nr rows from r on, nt activation rows from t on; both 1 or more */
typedef void moe_float_tile(const moe_mul *m, size_t r, size_t nr, size_t t, size_t nt);

MOE_INLINE void moe_tile_floats(const moe_mul *m, size_t r, size_t nr, size_t t, size_t nt,
                                moe_load16 *load) {
    const uint8_t *w = (const uint8_t *)m->w + r * m->w_stride,
                  *x = (const uint8_t *)m->x + t * m->x_stride;
    v16f acc[4][4];
    for (size_t i = 0; i < nr; i++)
        for (size_t j = 0; j < nt; j++) acc[i][j] = v16_zero();
    size_t k = 0;
    for (; k + 16 <= m->n_in; k += 16) {
        v16f wk[4];
        for (size_t i = 0; i < nr; i++) wk[i] = load(w + i * m->w_stride, k, 16);
        for (size_t j = 0; j < nt; j++) {
            v16f xk = v16_load((const float *)(x + j * m->x_stride) + k);
            for (size_t i = 0; i < nr; i++) acc[i][j] = v16_madd(wk[i], xk, acc[i][j]);
        }
    }
    for (size_t i = 0; i < nr; i++)
        for (size_t j = 0; j < nt; j++) {
            size_t n = m->n_in - k;
            const float *xk = (const float *)(x + j * m->x_stride) + k;
            if (n)
                acc[i][j] = v16_madd(load(w + i * m->w_stride, k, n), v16_load_n(xk, n), acc[i][j]);
            m->out[(t + j) * m->out_stride + r + i] = v16_hsum(acc[i][j]);
        }
}

MOE_INLINE void moe_tile_F32(const moe_mul *m, size_t r, size_t nr, size_t t, size_t nt) {
    moe_tile_floats(m, r, nr, t, nt, load16_F32);
}
MOE_INLINE void moe_tile_F16(const moe_mul *m, size_t r, size_t nr, size_t t, size_t nt) {
    moe_tile_floats(m, r, nr, t, nt, load16_F16);
}
MOE_INLINE void moe_tile_BF16(const moe_mul *m, size_t r, size_t nr, size_t t, size_t nt) {
    const uint8_t *w = (const uint8_t *)m->w + r * m->w_stride,
                  *x = (const uint8_t *)m->x + t * m->x_stride;
    v16f acc[4][4];
    for (size_t i = 0; i < nr; i++)
        for (size_t j = 0; j < nt; j++) acc[i][j] = v16_zero();
    size_t k = 0;
    for (; k + 32 <= m->n_in; k += 32)
        for (size_t j = 0; j < nt; j++)
            for (size_t i = 0; i < nr; i++)
                acc[i][j] = bf16_add_products(w + i * m->w_stride + 2 * k, x + j * m->x_stride + 2 * k, 32, acc[i][j]);
    for (size_t i = 0; i < nr; i++)
        for (size_t j = 0; j < nt; j++) {
            const uint8_t *wk = w + i * m->w_stride + 2 * k, *xk = x + j * m->x_stride + 2 * k;
            if (k < m->n_in) acc[i][j] = bf16_add_products(wk, xk, m->n_in - k, acc[i][j]);
            m->out[(t + j) * m->out_stride + r + i] = v16_hsum(acc[i][j]);
        }
}

/* activation rows t .. t1-1 with nr rows of weights from r on */
MOE_INLINE void moe_rows_floats(const moe_mul *m, size_t r, size_t nr, size_t t, size_t t1,
                                moe_float_tile *tile) {
    for (; t + MOE_FLOAT_TILE <= t1; t += MOE_FLOAT_TILE)
        tile(m, r, nr, t, MOE_FLOAT_TILE);
    for (; t < t1; t++) tile(m, r, nr, t, 1);
}

MOE_INLINE void moe_mul_floats(const moe_mul *m, moe_float_tile *tile) {
    for (size_t t = 0; t < m->n_x; t += MOE_FLOAT_X_BLOCK) {
        size_t t1 = m->n_x - t < MOE_FLOAT_X_BLOCK ? m->n_x : t + MOE_FLOAT_X_BLOCK, r = 0;
        if (m->n_x > 1) /* for one activation row, one stream from memory is faster than several */
            for (; r + MOE_FLOAT_ROWS <= m->n_rows; r += MOE_FLOAT_ROWS)
                moe_rows_floats(m, r, MOE_FLOAT_ROWS, t, t1, tile);
        for (; r < m->n_rows; r++) moe_rows_floats(m, r, 1, t, t1, tile);
    }
}

#define MOE_DERIVE_FLOAT(NAME)                                             \
    static void dequantize_row_##NAME(size_t n, const void *w, float *y) { \
        moe_dequantize_floats(n, w, y, load16_##NAME);                     \
    }                                                                      \
    static void mul_mat_##NAME(const moe_mul *m) { moe_mul_floats(m, moe_tile_##NAME); }

MOE_DERIVE_FLOAT(F32)
MOE_DERIVE_FLOAT(F16)
MOE_DERIVE_FLOAT(BF16)

#endif
