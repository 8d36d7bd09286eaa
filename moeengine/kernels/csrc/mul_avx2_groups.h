/* Matrix products on AVX2 of the types with small blocks; the plan is that of mul_avx2.h.
 *
 * A type gives `bytes_avx2_NAME`: 32 weights, the i-th of a row, as bytes, q + off (or q itself
 * where steps is 0: multiplied by way of absolute values). Where `halves` is 1 a scale belongs to
 * 16 weights (NVFP4): d to the first 16, m to the others. */
#ifndef MOE_MUL_AVX2_GROUPS_H
#define MOE_MUL_AVX2_GROUPS_H
#include "mul_avx2.h"
#include "mul_lanes.h"

typedef struct avx2_group { /* one block of one row */
    __m256i bytes;
    float d, m;
} avx2_group;
typedef avx2_group avx2_bytes(const void *row, size_t i);

typedef struct avx2_group_kind { /* compile-time constants of a type */
    size_t bytes;                /* 32 weights */
    int halves;                  /* scales for 32 weights, less one */
    int steps;                   /* products added as int16; 0: signed */
    int off, has_min;
} avx2_group_kind;

/* pairs of products as int16 */
MOE_INLINE __m256i avx2_pairs(int steps, __m256i w, __m256i y) {
    if (steps) return _mm256_maddubs_epi16(w, y);
    return _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(y, w));
}

/* acc += (sum - off * sum of y) * d * yd, then m * s, of 32-block i of x; block sums are whole
 * numbers below 2^24 */
MOE_INLINE __m256 avx2_group_out(avx2_group_kind kind, __m256 sum, __m256 d, __m256 m, moe_x_q8_0 x,
                                 size_t i, __m256 acc) {
    if (kind.off) sum = _mm256_sub_ps(sum, _mm256_set1_ps((float)(kind.off * x.sum[i])));
    acc = _mm256_fmadd_ps(sum, _mm256_mul_ps(d, _mm256_set1_ps(x.d[i])), acc);
    return kind.has_min ? _mm256_fmadd_ps(m, _mm256_set1_ps(x.s[i]), acc) : acc;
}

/* lanes 2i and 2i+1: sums of the halves of v[i], i < 4 */
MOE_INLINE __m256i avx2_half_sums4(const __m256i *v) {
    __m256i s = _mm256_hadd_epi32(_mm256_hadd_epi32(v[0], v[1]), _mm256_hadd_epi32(v[2], v[3]));
    return _mm256_permutevar8x32_epi32(s, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

/* as avx2_few256; with halves a block gives two sums and two scales */
MOE_INLINE void avx2_few_groups(const moe_mul *m, avx2_group_kind kind, avx2_bytes *bytes) {
    enum { BLOCKS = 128, PLACES = 8 * BLOCKS + 8 };
    float sums[PLACES], d[PLACES], mins[PLACES];
    const __m256i ones = _mm256_set1_epi16(1);
    size_t n_blocks = m->n_in / 32, max_blocks = kind.halves ? BLOCKS / 2 : BLOCKS,
           n_at_once = kind.halves ? 4 : 8;
    for (size_t t = 0; t < m->n_x; t++) {
        moe_x_q8_0 x = moe_x_q8_0_at(m->n_in, (const uint8_t *)m->x + t * m->x_stride);
        for (size_t r0 = 0; r0 < m->n_rows; r0 += 8) {
            size_t n = m->n_rows - r0 < 8 ? m->n_rows - r0 : 8;
            __m256 acc = _mm256_setzero_ps();
            for (size_t b0 = 0; b0 < n_blocks; b0 += max_blocks) {
                size_t nb = n_blocks - b0 < max_blocks ? n_blocks - b0 : max_blocks, b = 0;
                const uint8_t *w = (const uint8_t *)m->w + r0 * m->w_stride;
                float *sums_at = sums, *d_at = d, *mins_at = mins;
                for (size_t i = 0; i < n * nb; i += n_at_once) {
                    size_t now = n * nb - i < n_at_once ? n * nb - i : n_at_once;
                    __m256i sum[8];
                    for (size_t k = 0; k < n_at_once * kind.bytes; k += 64)
                        _mm_prefetch((const char *)w + (b0 + b) * kind.bytes + AVX2_AHEAD + k,
                                     _MM_HINT_T0);
                    for (size_t k = now; k < n_at_once; k++) sum[k] = _mm256_setzero_si256();
                    for (size_t k = 0; k < now; k++) {
                        avx2_group g = bytes(w, b0 + b);
                        __m256i pairs =
                            avx2_pairs(kind.steps, g.bytes, avx2_load(x.q + 32 * (b0 + b)));
                        sum[k] = _mm256_madd_epi16(pairs, ones);
                        *d_at++ = g.d;
                        if (kind.has_min) *mins_at++ = g.m;
                        if (kind.halves) *d_at++ = g.m;
                        if (++b == nb) b = 0, w += m->w_stride;
                    }
                    __m256i s = kind.halves ? avx2_half_sums4(sum) : avx2_sums8(sum);
                    _mm256_storeu_ps(sums_at, _mm256_cvtepi32_ps(s));
                    sums_at += 8;
                }
                size_t n_sums = kind.halves ? 2 * nb : nb;
                for (b = 0; b < n_sums; b += 4) {
                    __m256 sum4[4], d4[4], min4[4];
                    avx2_float_columns(sums + b, n_sums, sum4);
                    avx2_float_columns(d + b, n_sums, d4);
                    if (kind.has_min) avx2_float_columns(mins + b, n_sums, min4);
                    for (size_t k = 0; k < 4 && b + k < n_sums; k++)
                        acc = avx2_group_out(kind, sum4[k], d4[k], kind.has_min ? min4[k] : d4[k],
                                             x, b0 + (kind.halves ? (b + k) / 2 : b + k), acc);
                }
            }
            float out[8];
            _mm256_storeu_ps(out, acc);
            memcpy(m->out + t * m->out_stride + r0, out, n * sizeof(float));
        }
    }
}

typedef struct avx2_group_panel { /* up to 8 blocks of 8 rows; lane = row */
    __m256i u[64];
    __m256 d[8], m[8];
} avx2_group_panel;

MOE_INLINE void avx2_unpack_groups(const uint8_t *const *row, size_t b0, size_t nb,
                                   avx2_group_kind kind, avx2_bytes *bytes, avx2_group_panel *p) {
    for (size_t b = 0; b < nb; b++) {
        uint8_t q[8][32];
        const uint8_t *q_row[8];
        float d[8], m[8];
        for (size_t r = 0; r < 8; r++) {
            avx2_group g = bytes(row[r], b0 + b);
            _mm256_storeu_si256((__m256i *)q[r], g.bytes);
            q_row[r] = q[r], d[r] = g.d, m[r] = g.m;
        }
        avx2_columns(q_row, 0, p->u + 8 * b);
        avx2_columns(q_row, 16, p->u + 8 * b + 4);
        p->d[b] = _mm256_loadu_ps(d);
        if (kind.has_min || kind.halves) p->m[b] = _mm256_loadu_ps(m);
    }
}

/* 16 rows (two panels) times nt activation rows: out[t * out_stride + row] += ... */
MOE_INLINE void avx2_tile_groups_out(avx2_group_kind kind, const avx2_group_panel *p, size_t b0,
                                     size_t nb, size_t nt, const moe_x_q8_0 *x, float *out,
                                     size_t out_stride) {
    const __m256i ones = _mm256_set1_epi16(1);
    __m256 acc[2][AVX2_TILE];
    for (size_t h = 0; h < 2; h++)
        for (size_t t = 0; t < nt; t++) {
            acc[h][t] = _mm256_setzero_ps();
            if (b0) acc[h][t] = _mm256_loadu_ps(out + t * out_stride + 8 * h);
        }
#pragma GCC unroll 1
    for (size_t b = 0; b < nb; b++) {
        __m256i pairs[2][AVX2_TILE], isum[2][AVX2_TILE];
        int steps = kind.steps ? kind.steps : 1, last = kind.halves ? 4 : 8;
#pragma GCC unroll 8
        for (int s = 0; s < 8; s++)
            for (size_t t = 0; t < nt; t++) {
                __m256i y = avx2_dword(x[t].q + 32 * (b0 + b) + 4 * (size_t)s);
                for (size_t h = 0; h < 2; h++) {
                    __m256i m = avx2_pairs(kind.steps, p[h].u[8 * b + (size_t)s], y);
                    pairs[h][t] = s % steps ? _mm256_add_epi16(pairs[h][t], m) : m;
                    AVX2_KEEP(pairs[h][t]);
                    if (s % steps == steps - 1) {
                        __m256i part = _mm256_madd_epi16(pairs[h][t], ones);
                        isum[h][t] = s % last < steps ? part : _mm256_add_epi32(isum[h][t], part);
                    }
                    if (kind.halves && s == 3)
                        acc[h][t] = avx2_group_out(kind, _mm256_cvtepi32_ps(isum[h][t]), p[h].d[b],
                                                   p[h].d[b], x[t], b0 + b, acc[h][t]);
                }
            }
        for (size_t t = 0; t < nt; t++)
            for (size_t h = 0; h < 2; h++)
                acc[h][t] = avx2_group_out(
                    kind, _mm256_cvtepi32_ps(isum[h][t]), kind.halves ? p[h].m[b] : p[h].d[b],
                    kind.has_min ? p[h].m[b] : p[h].d[b], x[t], b0 + b, acc[h][t]);
    }
    for (size_t t = 0; t < nt; t++)
        for (size_t h = 0; h < 2; h++) _mm256_storeu_ps(out + t * out_stride + 8 * h, acc[h][t]);
}

/* nt activation rows, at most AVX2_TILE; n valid rows of the 16 */
MOE_INLINE void avx2_tiles_groups(avx2_group_kind kind, const avx2_group_panel *p, size_t b0,
                                  size_t nb, size_t n, size_t nt, const moe_x_q8_0 *x, float *out,
                                  size_t out_stride) {
    float edge[AVX2_TILE][16], *o = out;
    size_t stride = out_stride, t = 0;
    if (n < 16) { /* a place for all 16 rows */
        for (size_t i = 0; i < nt; i++) memcpy(edge[i], out + i * out_stride, n * sizeof(float));
        o = edge[0], stride = 16;
    }
    if (nt == AVX2_TILE) {
        avx2_tile_groups_out(kind, p, b0, nb, AVX2_TILE, x, o, stride);
    } else {
        for (; t + 2 <= nt; t += 2)
            avx2_tile_groups_out(kind, p, b0, nb, 2, x + t, o + t * stride, stride);
        if (t < nt) avx2_tile_groups_out(kind, p, b0, nb, 1, x + t, o + t * stride, stride);
    }
    if (n < 16)
        for (size_t i = 0; i < nt; i++) memcpy(out + i * out_stride, edge[i], n * sizeof(float));
}

MOE_INLINE void avx2_many_groups(const moe_mul *m, avx2_group_kind kind, avx2_bytes *bytes) {
    avx2_group_panel p[2];
    size_t n_blocks = m->n_in / 32;
    for (size_t t0 = 0; t0 < m->n_x; t0 += AVX2_X_BLOCK) {
        size_t t1 = m->n_x - t0 < AVX2_X_BLOCK ? m->n_x : t0 + AVX2_X_BLOCK;
        for (size_t r0 = 0; r0 < m->n_rows; r0 += 16) {
            size_t n = m->n_rows - r0 < 16 ? m->n_rows - r0 : 16;
            const uint8_t *row[16], *next = r0 + 16 < m->n_rows ? (const uint8_t *)m->w + (r0 + 16) * m->w_stride : m->next;
            for (size_t r = 0; r < 16; r++) /* rows that are not there: the last one again */
                row[r] = (const uint8_t *)m->w + (r0 + (r < n ? r : n - 1)) * m->w_stride;
            for (size_t b0 = 0; b0 < n_blocks; b0 += 8) {
                size_t nb = n_blocks - b0 < 8 ? n_blocks - b0 : 8;
                avx2_unpack_groups(row, b0, nb, kind, bytes, &p[0]);
                avx2_unpack_groups(row + 8, b0, nb, kind, bytes, &p[1]);
                if (next) /* the panel to come, one line after another */
                    for (size_t i = 0; i < 16 * nb * kind.bytes; i += 64)
                        _mm_prefetch((const char *)next + 16 * b0 * kind.bytes + i, _MM_HINT_T1);
                for (size_t t = t0; t < t1; t += AVX2_TILE) {
                    moe_x_q8_0 x[AVX2_TILE];
                    size_t nt = t1 - t < AVX2_TILE ? t1 - t : AVX2_TILE;
                    for (size_t k = 0; k < nt; k++)
                        x[k] =
                            moe_x_q8_0_at(m->n_in, (const uint8_t *)m->x + (t + k) * m->x_stride);
                    avx2_tiles_groups(kind, p, b0, nb, n, nt, x, m->out + t * m->out_stride + r0,
                                      m->out_stride);
                }
            }
        }
    }
}

/* mul_mat_avx2_NAME from bytes_avx2_NAME */
#define AVX2_MUL_GROUPS(NAME, bytes, halves, steps, off)                              \
    static void mul_mat_avx2_##NAME(const moe_mul *m) {                               \
        const avx2_group_kind kind = {bytes, halves, steps, off, MOE_HAS_MIN_##NAME}; \
        if (m->n_x < AVX2_MANY) avx2_few_groups(m, kind, bytes_avx2_##NAME);          \
        else avx2_many_groups(m, kind, bytes_avx2_##NAME);                            \
    }

#endif
