/* The two products of attention for a block of R query rows, C vectors wide, in registers. R, C and
 * `wide` are constants where these are called. Every element is one fma chain, so the shape of the
 * block changes no bit. */

/* Rows a block, and the width that fills the registers for each number of rows. */
#if MOE_SIMD_AVX512
#define ATTN_ROWS 8
#define ATTN_WIDTH(R) ((R) == 1 ? 8 : (R) <= 4 ? 4 : 2)
#elif MOE_SIMD_AVX2
#define ATTN_ROWS 6
#define ATTN_WIDTH(R) ((R) == 1 ? 4 : (R) == 2 ? 2 : 1)
#else
#define ATTN_ROWS 2
#define ATTN_WIDTH(R) 1
#endif

/* A tile of K or V: F16 as cached, and f32 where it pays to convert it once for many blocks. */
typedef struct attn_tile {
    const uint16_t *f16;
    size_t f16_stride; /* elements between two rows */
    size_t ahead;      /* elements from here to the next tile */
    const float *f32;  /* NULL: not converted; rows padded to 16 */
    size_t f32_stride;
} attn_tile;

/* The same tile from element i of its rows on. */
MOE_INLINE attn_tile tile_from(attn_tile t, size_t i) {
    t.f16 += i;
    if (t.f32) t.f32 += i;
    return t;
}
/* The same tile from row i on. */
MOE_INLINE attn_tile rows_from(attn_tile t, size_t i) {
    t.f16 += i * t.f16_stride;
    if (t.f32) t.f32 += i * t.f32_stride;
    return t;
}
MOE_INLINE v16f tile_load(attn_tile t, int wide, size_t row, size_t i, size_t lanes) {
    if (wide) return v16_load(t.f32 + row * t.f32_stride + i);
    const uint16_t *p = t.f16 + row * t.f16_stride + i;
    /* One tile ahead, into L2 (L1 is full of this one): with few rows the cache comes from memory, and
     * several passes in strides of a row are nothing that the hardware foresees. */
    if (i % 32 == 0) __builtin_prefetch(p + t.ahead, 0, 2);
    return lanes < 16 ? v16_load_f16_n(p, lanes) : v16_load_f16(p);
}

/* s[r][j] = sum_d q[r][d] * k[d][j], d ascending, for 16 C keys j */
MOE_INLINE void score_block(int R, int C, int wide, size_t dim, const float *const *q, attn_tile k,
                            float *s) {
    v16f acc[ATTN_ROWS][8];
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
#pragma GCC unroll 8
        for (int c = 0; c < C; c++) acc[r][c] = v16_zero();
    }
    for (size_t d = 0; d < dim; d++) {
        v16f kd[8];
#pragma GCC unroll 8
        for (int c = 0; c < C; c++) kd[c] = tile_load(k, wide, d, 16 * (size_t)c, 16);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            v16f qd = v16_set1(q[r][d]);
#pragma GCC unroll 8
            for (int c = 0; c < C; c++) acc[r][c] = v16_madd(qd, kd[c], acc[r][c]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
#pragma GCC unroll 8
        for (int c = 0; c < C; c++) v16_store(s + r * MOE_KV_TILE + 16 * c, acc[r][c]);
    }
}

/* acc[r][i] += sum_j p[r][j] * v[j][i], j = 0 .. n-1 ascending, for 16 C values i; of the last vector
 * only `lanes` exist. Rows of acc are acc_stride floats apart. */
MOE_INLINE void value_block(int R, int C, int wide, size_t lanes, size_t n, const float *p, attn_tile v,
                            float *acc, size_t acc_stride) {
    v16f sum[ATTN_ROWS][8];
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
#pragma GCC unroll 8
        for (int c = 0; c < C; c++) sum[r][c] = v16_load(acc + r * acc_stride + 16 * c);
    }
    for (size_t j = 0; j < n; j++) {
        v16f vj[8];
#pragma GCC unroll 8
        for (int c = 0; c < C; c++) vj[c] = tile_load(v, wide, j, 16 * (size_t)c, lanes);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            v16f pj = v16_set1(p[r * MOE_KV_TILE + j]);
#pragma GCC unroll 8
            for (int c = 0; c < C; c++) sum[r][c] = v16_madd(pj, vj[c], sum[r][c]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
#pragma GCC unroll 8
        for (int c = 0; c < C; c++) v16_store(acc + r * acc_stride + 16 * c, sum[r][c]);
    }
}

/* Scores of the keys from .. to-1 of a tile (rounded outwards to whole vectors). */
MOE_INLINE void score_rows(int R, int wide, size_t dim, const float *const *q, attn_tile k, size_t from,
                           size_t to, float *s) {
    const int C = ATTN_WIDTH(R) < 4 ? ATTN_WIDTH(R) : 4; /* 4 vectors are a tile */
    for (size_t j = from / (16 * C) * (16 * C); j < to; j += 16 * C) {
        score_block(R, C, wide, dim, q, tile_from(k, j), s + j);
    }
}
static void scores(int n_rows, size_t dim, const float *const *q, attn_tile k, size_t from, size_t to,
                   float *s) {
#define CASE(R) case R: score_rows(R, 0, dim, q, k, from, to, s); return
    if (n_rows == ATTN_ROWS && k.f32) {
        score_rows(ATTN_ROWS, 1, dim, q, k, from, to, s);
        return;
    }
    switch (n_rows) {
        CASE(1);
        CASE(2);
#if ATTN_ROWS > 2
        CASE(3);
        CASE(4);
        CASE(5);
        CASE(6);
#endif
#if ATTN_ROWS > 6
        CASE(7);
        CASE(8);
#endif
    }
#undef CASE
}

/* All head_dim_v values, in blocks of the full width and then halves of it. */
MOE_INLINE void value_rows(int R, int wide, size_t dim, size_t n, const float *p, attn_tile v, float *acc,
                           size_t acc_stride) {
    const int C = ATTN_WIDTH(R);
    size_t i = 0;
#define STEP(W)                                                                             \
    {                                                                                       \
        value_block(R, W, wide, 16, n, p, tile_from(v, i), acc + i, acc_stride); \
        i += 16 * (W);                                                                      \
    }
    while (i + 16 * C <= dim) STEP(C)
    if (C > 4 && i + 64 <= dim) STEP(4)
    if (C > 2 && i + 32 <= dim) STEP(2)
    if (C > 1 && i + 16 <= dim) STEP(1)
#undef STEP
    if (i < dim) value_block(R, 1, wide, dim - i, n, p, tile_from(v, i), acc + i, acc_stride);
}
static void values(int n_rows, size_t dim, size_t n, const float *p, attn_tile v, float *acc,
                   size_t acc_stride) {
#define CASE(R)                                                         \
    case R:                                                             \
        if (v.f32) value_rows(R, 1, dim, n, p, v, acc, acc_stride);     \
        else value_rows(R, 0, dim, n, p, v, acc, acc_stride);           \
        return
    switch (n_rows) {
        CASE(1);
        CASE(2);
#if ATTN_ROWS > 2
        CASE(3);
        CASE(4);
        CASE(5);
        CASE(6);
#endif
#if ATTN_ROWS > 6
        CASE(7);
        CASE(8);
#endif
    }
#undef CASE
}
