/* Attention of the first positions of a timeline, with the rounding that ggml's CPU kernel has there.
 *
 * For few queries ggml keeps the weighted sum of values in F16 and takes one key after the other:
 *   new maximum:  sum = f16(sum * shrink), shrink = exp(old - new), weight 1 ;  else weight = exp(score - max)
 *   sum = f16(fma(value, weight, sum)) ;  total = fma(total, shrink, weight)
 * with queries rounded to F16. On CPUs with native F16 arithmetic, whose results we take as the measure,
 * shrink and weight are themselves rounded to F16 for every whole 128 values of a head. That rounding (2^-11) is a
 * thousand times our own and would be the largest difference between the two on short texts, so it is reproduced for
 * queries at positions below MOE_F16_POSITIONS. It costs four times attention() a key, which few positions can afford.
 * (ggml does so for prompts of fewer than 64 tokens and up to position 255. Longer prompts go through a kernel that
 * sums in float32; which of the two a position saw cannot be known here, where a prompt may be cut anywhere.)
 * Keys outside a sliding window are passed over, and a sink joins the finished sum in float32, as it does there.
 *
 * Tiles of keys in the outer loop, rows in the inner one, as in attention.h; the state of a row is its maximum, its
 * total and the sum of values, float32 of F16 precision.
 *
 * Source: the definition of ggml_compute_forward_flash_attn_ext for one query and F16 keys and values. */

enum {
    ATTN_F16_LANES = 128,
    ATTN_F16_CONVERT_ROWS = 4, /* from this many rows on a tile is converted to f32 first */
};

MOE_INLINE float f32_round_f16(float x) { return f32_from_f16(f16_from_f32(x)); }

/* Of 16 keys: the products of elements i, i + 64, .. below `whole`. */
MOE_INLINE v16f f16_strand(int wide, size_t whole, const float *q, attn_tile k, size_t i) {
    v16f sum = v16_mul(tile_load(k, wide, i, 0, 16), v16_set1(q[i]));
    for (size_t d = i + 64; d < whole; d += 64) sum = v16_madd(tile_load(k, wide, d, 0, 16), v16_set1(q[d]), sum);
    return sum;
}
MOE_INLINE v16f f16_two_strands(int wide, size_t whole, const float *q, attn_tile k, size_t i) {
    return v16_add(f16_strand(wide, whole, q, k, i), f16_strand(wide, whole, q, k, i + 32));
}
MOE_INLINE v16f f16_four_strands(int wide, size_t whole, const float *q, attn_tile k, size_t i) {
    return v16_add(f16_two_strands(wide, whole, q, k, i), f16_two_strands(wide, whole, q, k, i + 16));
}

/* Scores of 16 keys. The products of one key are summed as ggml sums them: whole blocks of 64 elements in 64 strands,
 * which are then halved (strand i + strand i+32, then +16, +8, +4, +2, +1), the rest one by one in double.
 * n_blocks: whole blocks, where known when compiled; else 0. */
MOE_INLINE void f16_scores(int n_blocks, int wide, size_t dim, const float *q, attn_tile k, float *score) {
    const size_t whole = n_blocks ? 64 * (size_t)n_blocks : dim & ~(size_t)63;
    v16f part[8];
#pragma GCC unroll 1
    for (size_t i = 0; i < 8; i++) {
        part[i] = v16_zero();
        if (whole) part[i] = v16_add(f16_four_strands(wide, whole, q, k, i), f16_four_strands(wide, whole, q, k, i + 8));
    }
    for (size_t half = 4; half > 0; half /= 2) {
        for (size_t i = 0; i < half; i++) part[i] = v16_add(part[i], part[i + half]);
    }
    v16_store(score, part[0]);
    for (size_t l = 0; l < 16 && whole < dim; l++) {
        double sum = score[l];
        for (size_t d = whole; d < dim; d++) {
            float y = wide ? k.f32[d * k.f32_stride + l] : f32_from_f16(k.f16[d * k.f16_stride + l]);
            sum += (double)(y * q[d]);
        }
        score[l] = (float)sum;
    }
}

/* Scores of the keys from lo (rounded down to a whole vector) to n-1 of a tile. */
static void f16_score_row(const moe_attn *a, const float *q, attn_tile k, size_t lo, size_t n, float *score) {
    const size_t dim = a->head_dim_k;
#define EACH(n_blocks, wide) \
    for (size_t j = lo & ~(size_t)15; j < n; j += 16) f16_scores(n_blocks, wide, dim, q, tile_from(k, j), score + j)
    if (!k.f32) EACH(0, 0);
    else if (dim == 64) EACH(1, 1);
    else if (dim == 128) EACH(2, 1);
    else EACH(0, 1);
#undef EACH
}

/* Scores to weights; shrink[j] other than 1: the sum so far is multiplied by it before key j. */
static void f16_weigh_row(float scale, size_t n, float *score, float *shrink, float *state) {
    float max = state[STATE_MAX], total = state[STATE_SUM];
    for (size_t j = 0; j < n; j++) {
        float s = score[j] * scale, old = max;
        max = s > max ? s : max;
        shrink[j] = s > old ? old - s : 0.0f; /* the exponents, of which exp(0) is 1 */
        score[j] = s > old ? 0.0f : s - old;
    }
    for (size_t j = 0; j < n; j++) score[j] = f32_exp(score[j]);
    for (size_t j = 0; j < n; j++) shrink[j] = shrink[j] == 0.0f ? 1.0f : f32_exp(shrink[j]);
    for (size_t j = 0; j < n; j++) total = f32_madd(total, shrink[j], score[j]);
    state[STATE_MAX] = max;
    state[STATE_SUM] = total;
}

/* acc[0 .. lanes-1] += weight * value, key after key; n_acc vectors */
MOE_INLINE void f16_value_block(int n_acc, int native, int wide, size_t lanes, size_t n, const float *shrink,
                                const float *weight, attn_tile v, float *acc) {
    v16f sum[ATTN_F16_LANES / 16];
#pragma GCC unroll 8
    for (int c = 0; c < n_acc; c++) sum[c] = v16_load(acc + 16 * c);
    for (size_t j = 0; j < n; j++) {
        const v16f w = v16_set1(native ? f32_round_f16(weight[j]) : weight[j]);
        if (shrink[j] != 1.0f) {
            const v16f m = v16_set1(native ? f32_round_f16(shrink[j]) : shrink[j]);
#pragma GCC unroll 8
            for (int c = 0; c < n_acc; c++) sum[c] = v16_round_f16(v16_mul(sum[c], m));
        }
#pragma GCC unroll 8
        for (int c = 0; c < n_acc; c++) {
            size_t left = lanes - 16 * (size_t)c;
            v16f x = tile_load(v, wide, j, 16 * (size_t)c, left < 16 ? left : 16);
            sum[c] = native ? v16_madd_f16(x, w, sum[c]) : v16_round_f16(v16_madd(x, w, sum[c]));
        }
    }
#pragma GCC unroll 8
    for (int c = 0; c < n_acc; c++) v16_store(acc + 16 * c, sum[c]);
}

#if MOE_SIMD_FP16
/* 32 values of a head as half floats. Where values lie in keys, only the float32 tile has them in rows. */
MOE_INLINE __m512h f16_load_32(const moe_attn *a, attn_tile v, size_t row, size_t i) {
    if (a->v) return _mm512_loadu_ph(v.f16 + row * v.f16_stride + i);
    return f16_pack_32(v.f32 + row * v.f32_stride + i);
}

/* f16_value_block of 128 values and native, in half floats */
static void f16_value_block_native(const moe_attn *a, size_t n, const float *shrink, const float *weight, attn_tile v, float *acc) {
    __m512h sum[ATTN_F16_LANES / 32];
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) sum[c] = f16_pack_32(acc + 32 * c);
    for (size_t j = 0; j < n; j++) {
        const __m512h w = f16_set1_32(weight[j]);
        if (shrink[j] != 1.0f) {
            const __m512h m = f16_set1_32(shrink[j]);
#pragma GCC unroll 4
            for (int c = 0; c < 4; c++) sum[c] = _mm512_mul_ph(sum[c], m);
        }
#pragma GCC unroll 4
        for (int c = 0; c < 4; c++) sum[c] = _mm512_fmadd_ph(f16_load_32(a, v, j, 32 * (size_t)c), w, sum[c]);
    }
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) f16_unpack_32(sum[c], acc + 32 * c);
}
#endif

static void f16_value_row(const moe_attn *a, size_t n, const float *shrink, const float *weight, attn_tile v,
                          float *acc) {
    const size_t dim = a->head_dim_v;
    size_t d = 0;
#if MOE_SIMD_FP16
    for (; d + 128 <= dim; d += 128) f16_value_block_native(a, n, shrink, weight, tile_from(v, d), acc + d);
#endif
#define EACH(n_acc, native, lanes)                                                                        \
    if (v.f32) f16_value_block(n_acc, native, 1, lanes, n, shrink, weight, tile_from(v, d), acc + d);     \
    else f16_value_block(n_acc, native, 0, lanes, n, shrink, weight, tile_from(v, d), acc + d)
    for (; d + 128 <= dim; d += 128) EACH(8, 1, 128);
    for (; d + 64 <= dim; d += 64) EACH(4, 0, 64);
    for (; d < dim; d += 16) EACH(1, 0, dim - d);
#undef EACH
}

static void round_row_f16(size_t n, const float *x, float *y) { MOE_ROW_LOOP(n, x, x, y, ((void)b, v16_round_f16(a))); }

static void attention_f16_chunk(const moe_attn *a) {
    const size_t stride = moe_attn_partial_floats(a->head_dim_v);
    const attn_scratch w = cut_scratch(a);
    float score[MOE_KV_TILE], shrink[MOE_KV_TILE];
    size_t begin = SIZE_MAX, end = 0;
    for (size_t i = 0; i < a->n_q; i++) {
        attn_span all = seen_keys(a, i, 0, SIZE_MAX / 2);
        begin = all.lo < begin ? all.lo : begin;
        end = all.hi > end ? all.hi : end;
    }
    memset(w.sum, 0, a->n_q * stride * sizeof *w.sum);
    for (size_t i = 0; i < a->n_q; i++) w.sum[i * stride + STATE_MAX] = -INFINITY;
    for (size_t pos = begin & ~(size_t)(MOE_KV_TILE - 1); pos < end; pos += MOE_KV_TILE) {
        const size_t n_keys = end - pos < MOE_KV_TILE ? end - pos : MOE_KV_TILE;
        attn_tile k, v;
        tiles_at(a, pos, &k, &v);
        if (a->n_q >= ATTN_F16_CONVERT_ROWS || !a->v) convert_tile(a, n_keys, w, &k, &v);
        for (size_t i = 0; i < a->n_q; i++) {
            const attn_span seen = seen_keys(a, i, pos, MOE_KV_TILE);
            float *state = w.sum + i * stride;
            if (seen.hi == 0) continue;
            round_row_f16(a->head_dim_k, a->q[i], w.q);
            f16_score_row(a, w.q, k, seen.lo, seen.hi, score);
            f16_weigh_row(a->scale, seen.hi - seen.lo, score + seen.lo, shrink, state);
            f16_value_row(a, seen.hi - seen.lo, shrink, score + seen.lo, rows_from(v, seen.lo), state + STATE_VALUES);
        }
    }
    for (size_t i = 0; i < a->n_q; i++) finish_row(a, i, w.sum + i * stride);
}

static void attention_f16(const moe_attn *a) { attend_in_chunks(a, attention_f16_chunk); }
