/* Matrix products on AVX2: what all types share. Included once, by quants/all.h.
 *
 * Few activation rows: a row of weights is read from end to end, `dot` leaves 8 partial sums a
 * block. Many: 16 rows of weights are unpacked to bytes with the row as the lane, once a block, and
 * multiplied with 4 activation rows at a time.
 *
 * A byte product (vpmaddubsw) takes unsigned weights: q + off. The sum of off * y is taken away
 * again with the block sums of the activations. Pairs of products are added as int16 as long as
 * they cannot overflow: `steps` times, 2 * 127 * steps * (largest q + off) <= 32767. */
#ifndef MOE_MUL_AVX2_H
#define MOE_MUL_AVX2_H
#include "mul_generic.h"

#define AVX2_MANY 3      /* from this many activation rows on, unpacking a panel pays */
#define AVX2_TILE 4      /* activation rows multiplied at a time */
#define AVX2_X_BLOCK 256 /* activation rows that go through a panel at a time: they stay in L2 */
#define AVX2_AHEAD 3072  /* bytes that prefetching runs ahead of the weights being read, at least \
                          */

/* v has its value here. Keeps the compiler from adding up many products at the end, all of them
 * spilled. */
#define AVX2_KEEP(v) __asm__("" : "+x"(v))

MOE_INLINE __m256i avx2_load(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }
MOE_INLINE __m256i avx2_dword(const void *p) { return _mm256_set1_epi32((int32_t)moe_load_u32(p)); }

/* lane i = sum of the lanes of v[i], i < 8 */
MOE_INLINE __m256i avx2_sums8(const __m256i *v) {
    __m256i a = _mm256_hadd_epi32(_mm256_hadd_epi32(v[0], v[1]), _mm256_hadd_epi32(v[2], v[3]));
    __m256i b = _mm256_hadd_epi32(_mm256_hadd_epi32(v[4], v[5]), _mm256_hadd_epi32(v[6], v[7]));
    return _mm256_add_epi32(_mm256_permute2x128_si256(a, b, 0x20),
                            _mm256_permute2x128_si256(a, b, 0x31));
}

/* 16 bytes at `offset` of 8 rows -> 4 vectors: lane r of out[j] is dword j of row r */
MOE_INLINE void avx2_columns(const uint8_t *const *row, size_t offset, __m256i *out) {
    __m256i a[4];
    for (size_t r = 0; r < 4; r++) {
        __m128i lo = _mm_loadu_si128((const __m128i *)(row[r] + offset));
        __m128i hi = _mm_loadu_si128((const __m128i *)(row[r + 4] + offset));
        a[r] = _mm256_inserti128_si256(_mm256_castsi128_si256(lo), hi, 1);
    }
    __m256i t0 = _mm256_unpacklo_epi32(a[0], a[1]), t1 = _mm256_unpackhi_epi32(a[0], a[1]);
    __m256i t2 = _mm256_unpacklo_epi32(a[2], a[3]), t3 = _mm256_unpackhi_epi32(a[2], a[3]);
    out[0] = _mm256_unpacklo_epi64(t0, t2);
    out[1] = _mm256_unpackhi_epi64(t0, t2);
    out[2] = _mm256_unpacklo_epi64(t1, t3);
    out[3] = _mm256_unpackhi_epi64(t1, t3);
}

/* 4 floats each of 8 rows, `stride` floats apart -> 4 columns */
MOE_INLINE void avx2_float_columns(const float *rows, size_t stride, __m256 *column) {
    const uint8_t *row[8];
    __m256i v[4];
    for (size_t r = 0; r < 8; r++) row[r] = (const uint8_t *)(rows + r * stride);
    avx2_columns(row, 0, v);
    for (size_t k = 0; k < 4; k++) column[k] = _mm256_castsi256_ps(v[k]);
}

/* bytes i and j of every dword as two int16 */
MOE_INLINE __m256i avx2_byte_pair(__m256i v, int i, int j) {
    const __m256i at = _mm256_setr_epi8(0, -1, 0, -1, 4, -1, 4, -1, 8, -1, 8, -1, 12, -1, 12, -1, 0,
                                        -1, 0, -1, 4, -1, 4, -1, 8, -1, 8, -1, 12, -1, 12, -1);
    return _mm256_shuffle_epi8(v, _mm256_add_epi8(at, _mm256_set1_epi32(i | j << 16)));
}

/* halves at `offset` of 8 rows -> floats */
MOE_INLINE __m256 avx2_halves(const uint8_t *const *row, size_t offset) {
    uint16_t h[8];
    for (size_t r = 0; r < 8; r++) h[r] = moe_load_u16(row[r] + offset);
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)h));
}

/* ---- 256-weight types, few activation rows ---- */

typedef struct avx2_part { /* one block of one row */
    __m256i sum;           /* 8 lanes that add up to sum_g scale_g * sum_k q_k * y_k */
    __m256i mins;          /* 8 lanes that add up to sum_g min_g * sum_k y_k */
    float d, dmin;
} avx2_part;
typedef avx2_part avx2_dot256(const void *block, const block_x_q8_K *x);

/* int16 i (0 .. 7) of each 128-bit half in all lanes of that half */
MOE_INLINE __m256i avx2_spread16(__m256i v, int i) {
    return _mm256_shuffle_epi8(v, _mm256_set1_epi16((int16_t)((2 * i + 1) << 8 | 2 * i)));
}

/* 16 scales -> halves of even: scales 0, 2, 4, 6 and 8, 10, 12, 14; of odd: 1, 3, 5, 7 and 9, 11,
 * 13, 15 */
MOE_INLINE void avx2_scales_by_half(__m256i sc, __m256i *even, __m256i *odd) {
    const __m256i at = _mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15, 0, 1,
                                        4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
    *even = _mm256_shuffle_epi8(sc, at);
    *odd = _mm256_srli_si256(*even, 8);
}

/* acc and the sums of one block, in the order of moe_table.h; mins and dmin only where has_min */
MOE_INLINE __m256 avx2_finish256(int has_min, int scales_first, __m256 isum, __m256 d, __m256 mins, __m256 dmin,
                                 float x_d, __m256 acc) {
    const __m256 yd = _mm256_set1_ps(x_d);
    if (scales_first) {
        acc = _mm256_fmadd_ps(isum, _mm256_mul_ps(d, yd), acc);
        return has_min ? _mm256_fnmadd_ps(mins, _mm256_mul_ps(dmin, yd), acc) : acc;
    }
    __m256 sum = _mm256_mul_ps(isum, d);
    if (has_min) sum = _mm256_fnmadd_ps(mins, dmin, sum);
    return _mm256_fmadd_ps(sum, yd, acc);
}

/* 8 rows at a time, each read from end to end, 8 blocks at a time, which may be of two rows; sums
 * and scales are kept until all rows are there, and then added up with the row as the lane. */
MOE_INLINE void avx2_few256(const moe_mul *m, size_t bytes, int has_min, int scales_first,
                            avx2_dot256 *dot) {
    enum { BLOCKS = 64, PLACES = 8 * BLOCKS + 8 };
    float sums[PLACES], d[PLACES], mins[PLACES], dmin[PLACES]; /* row after row */
    size_t n_blocks = m->n_in / 256;
    for (size_t t = 0; t < m->n_x; t++) {
        const block_x_q8_K *x = (const block_x_q8_K *)((const uint8_t *)m->x + t * m->x_stride);
        for (size_t r0 = 0; r0 < m->n_rows; r0 += 8) {
            size_t n = m->n_rows - r0 < 8 ? m->n_rows - r0 : 8;
            __m256 acc = _mm256_setzero_ps();
            for (size_t b0 = 0; b0 < n_blocks; b0 += BLOCKS) {
                size_t nb = n_blocks - b0 < BLOCKS ? n_blocks - b0 : BLOCKS, b = 0;
                const uint8_t *row = (const uint8_t *)m->w + r0 * m->w_stride + b0 * bytes,
                              *w = row;
                for (size_t i = 0; i < n * nb; i += 8) {
                    size_t n8 = n * nb - i < 8 ? n * nb - i : 8;
                    __m256i sum[8], min[8];
                    for (size_t k = n8; k < 8; k++) sum[k] = min[k] = _mm256_setzero_si256();
                    for (size_t k = 0; k < n8; k++) {
                        for (size_t j = 0; j < bytes; j += 64)
                            _mm_prefetch((const char *)w + AVX2_AHEAD + j, _MM_HINT_T0);
                        avx2_part part = dot(w, x + b0 + b);
                        sum[k] = part.sum;
                        d[i + k] = part.d;
                        if (has_min) min[k] = part.mins, dmin[i + k] = part.dmin;
                        b++, w += bytes;
                        if (b == nb) b = 0, row += m->w_stride, w = row;
                    }
                    _mm256_storeu_ps(sums + i, _mm256_cvtepi32_ps(avx2_sums8(sum)));
                    if (has_min) _mm256_storeu_ps(mins + i, _mm256_cvtepi32_ps(avx2_sums8(min)));
                }
                for (b = 0; b < nb; b += 4) {
                    __m256 sum4[4], d4[4], mins4[4], dmin4[4];
                    avx2_float_columns(sums + b, nb, sum4);
                    avx2_float_columns(d + b, nb, d4);
                    if (has_min) avx2_float_columns(mins + b, nb, mins4);
                    if (has_min) avx2_float_columns(dmin + b, nb, dmin4);
                    for (size_t k = 0; k < 4 && b + k < nb; k++)
                        acc = avx2_finish256(has_min, scales_first, sum4[k], d4[k], has_min ? mins4[k] : sum4[k],
                                             has_min ? dmin4[k] : d4[k], x[b0 + b + k].d, acc);
                }
            }
            float out[8];
            _mm256_storeu_ps(out, acc);
            memcpy(m->out + t * m->out_stride + r0, out, n * sizeof(float));
        }
    }
}

/* ---- 256-weight types, many activation rows ---- */

typedef struct avx2_panel { /* one block of 8 rows; lane = row */
    __m256i u[64];          /* dword k/4: 4 weights, q + off (signed types: q) */
    __m256i sc[16];         /* a group: the scale, twice as int16 */
    __m256i
        sum[8]; /* two groups: what their block sums are multiplied with: min, or -off * scale */
    __m256 d, dmin;
} avx2_panel;
typedef void avx2_unpack256(const uint8_t *const *row, avx2_panel *p);

typedef struct avx2_kind { /* compile-time constants of a type */
    size_t bytes;          /* a block */
    int group;             /* weights with one scale: 16 or 32 */
    int steps;             /* products added as int16; 0: the panel is signed */
    int has_min;
    int scales_first;
    int has_off;
} avx2_kind;

/* isum += sum of pairs of (w * y) * sc */
#define AVX2_SCALED(isum, pairs, sc) _mm256_add_epi32(isum, _mm256_madd_epi16(pairs, sc))

/* 16 rows (two panels) times nt activation rows, nt <= AVX2_TILE */
MOE_INLINE void avx2_tile256(avx2_kind kind, const avx2_panel *p, size_t nt,
                             const block_x_q8_K *const *x, __m256i isum[2][AVX2_TILE]) {
    int n_steps = kind.group / 4;
#pragma GCC unroll 1
    for (int g = 0; g < 256 / kind.group; g++) {
        __m256i acc[2][AVX2_TILE];
#pragma GCC unroll 8
        for (int s = 0; s < n_steps; s++) {
            int j = g * n_steps + s;
            __m256i w0 = p[0].u[j], w1 = p[1].u[j];
            for (size_t t = 0; t < nt; t++) {
                __m256i y = avx2_dword(x[t]->q + 4 * j);
                if (kind.steps == 0) {
                    __m256i m0 = _mm256_maddubs_epi16(_mm256_abs_epi8(w0), _mm256_sign_epi8(y, w0));
                    __m256i m1 = _mm256_maddubs_epi16(_mm256_abs_epi8(w1), _mm256_sign_epi8(y, w1));
                    isum[0][t] = AVX2_SCALED(isum[0][t], m0, p[0].sc[g]);
                    isum[1][t] = AVX2_SCALED(isum[1][t], m1, p[1].sc[g]);
                    continue;
                }
                __m256i m0 = _mm256_maddubs_epi16(w0, y), m1 = _mm256_maddubs_epi16(w1, y);
                acc[0][t] = s % kind.steps ? _mm256_add_epi16(acc[0][t], m0) : m0;
                acc[1][t] = s % kind.steps ? _mm256_add_epi16(acc[1][t], m1) : m1;
                AVX2_KEEP(acc[0][t]);
                AVX2_KEEP(acc[1][t]);
                if (s % kind.steps == kind.steps - 1 || s == n_steps - 1) {
                    isum[0][t] = AVX2_SCALED(isum[0][t], acc[0][t], p[0].sc[g]);
                    isum[1][t] = AVX2_SCALED(isum[1][t], acc[1][t], p[1].sc[g]);
                }
            }
        }
    }
}

/* the same with the block sums and the float part: out[t * out_stride + row] += ... */
MOE_INLINE void avx2_tile256_out(avx2_kind kind, const avx2_panel *p, size_t nt,
                                 const block_x_q8_K *const *x, int first, float *out,
                                 size_t out_stride) {
    __m256i isum[2][AVX2_TILE], sums[2][AVX2_TILE];
    for (size_t h = 0; h < 2; h++)
        for (size_t t = 0; t < nt; t++) {
            sums[h][t] = _mm256_setzero_si256();
            if (!kind.has_min && !kind.has_off) continue;
            const int16_t *y = kind.group == 32 ? x[t]->sum32 : x[t]->sum16;
            for (int i = 0; i < 128 / kind.group; i++)
                sums[h][t] = AVX2_SCALED(sums[h][t], p[h].sum[i], avx2_dword(y + 2 * i));
        }
    for (size_t h = 0; h < 2; h++)
        for (size_t t = 0; t < nt; t++)
            isum[h][t] = kind.has_off ? sums[h][t] : _mm256_setzero_si256();
    avx2_tile256(kind, p, nt, x, isum);
#pragma GCC unroll 4
    for (size_t t = 0; t < nt; t++) {
        for (size_t h = 0; h < 2; h++) {
            float *o = out + t * out_stride + 8 * h;
            __m256 acc = first ? _mm256_setzero_ps() : _mm256_loadu_ps(o);
            acc = avx2_finish256(kind.has_min, kind.scales_first, _mm256_cvtepi32_ps(isum[h][t]), p[h].d,
                                 _mm256_cvtepi32_ps(sums[h][t]), p[h].dmin, x[t]->d, acc);
            _mm256_storeu_ps(o, acc);
        }
    }
}

/* nt activation rows, at most AVX2_TILE; n valid rows of the 16 */
MOE_INLINE void avx2_tiles256(avx2_kind kind, const avx2_panel *p, size_t n, size_t nt,
                              const block_x_q8_K *const *x, int first, float *out,
                              size_t out_stride) {
    float edge[AVX2_TILE][16], *o = out;
    size_t stride = out_stride, t = 0;
    if (n < 16) { /* a place for all 16 rows */
        for (size_t i = 0; i < nt; i++) memcpy(edge[i], out + i * out_stride, n * sizeof(float));
        o = edge[0], stride = 16;
    }
    if (nt == AVX2_TILE) {
        avx2_tile256_out(kind, p, AVX2_TILE, x, first, o, stride);
    } else {
        for (; t + 2 <= nt; t += 2)
            avx2_tile256_out(kind, p, 2, x + t, first, o + t * stride, stride);
        if (t < nt) avx2_tile256_out(kind, p, 1, x + t, first, o + t * stride, stride);
    }
    if (n < 16)
        for (size_t i = 0; i < nt; i++) memcpy(out + i * out_stride, edge[i], n * sizeof(float));
}

MOE_INLINE void avx2_many256(const moe_mul *m, avx2_kind kind, avx2_unpack256 *unpack) {
    avx2_panel p[2];
    size_t n_blocks = m->n_in / 256;
    for (size_t t0 = 0; t0 < m->n_x; t0 += AVX2_X_BLOCK) {
        size_t t1 = m->n_x - t0 < AVX2_X_BLOCK ? m->n_x : t0 + AVX2_X_BLOCK;
        for (size_t r0 = 0; r0 < m->n_rows; r0 += 16) {
            size_t n = m->n_rows - r0 < 16 ? m->n_rows - r0 : 16;
            const uint8_t *row[16], *next = r0 + 16 < m->n_rows ? (const uint8_t *)m->w + (r0 + 16) * m->w_stride : m->next;
            for (size_t r = 0; r < 16; r++) /* rows that are not there: the last one again */
                row[r] = (const uint8_t *)m->w + (r0 + (r < n ? r : n - 1)) * m->w_stride;
            for (size_t b = 0; b < n_blocks; b++) {
                unpack(row, &p[0]);
                unpack(row + 8, &p[1]);
                for (size_t r = 0; r < 16; r++) row[r] += kind.bytes;
                if (next) /* the panel to come, one line after another */
                    for (size_t i = 0; i < 16 * kind.bytes; i += 64)
                        _mm_prefetch((const char *)next + b * 16 * kind.bytes + i, _MM_HINT_T1);
                for (size_t t = t0; t < t1; t += AVX2_TILE) {
                    const block_x_q8_K *x[AVX2_TILE];
                    size_t nt = t1 - t < AVX2_TILE ? t1 - t : AVX2_TILE;
                    for (size_t i = 0; i < nt; i++)
                        x[i] =
                            (const block_x_q8_K *)((const uint8_t *)m->x + (t + i) * m->x_stride) +
                            b;
                    avx2_tiles256(kind, p, n, nt, x, b == 0, m->out + t * m->out_stride + r0,
                                  m->out_stride);
                }
            }
        }
    }
}

/* mul_mat_avx2_NAME from dot_avx2_NAME and panel_avx2_NAME */
#define AVX2_MUL_256(NAME, group, steps, has_off)                                                 \
    static void mul_mat_avx2_##NAME(const moe_mul *m) {                                           \
        const avx2_kind kind = {sizeof(block_##NAME), group, steps, MOE_HAS_MIN_##NAME,           \
                                MOE_SCALES_FIRST_##NAME, has_off};                                \
        if (m->n_x < AVX2_MANY)                                                                   \
            avx2_few256(m, sizeof(block_##NAME), MOE_HAS_MIN_##NAME, MOE_SCALES_FIRST_##NAME,     \
                        dot_avx2_##NAME);                                                         \
        else avx2_many256(m, kind, panel_avx2_##NAME);                                            \
    }

#endif
