/* Attention of the first positions of a timeline, with the rounding that ggml's CPU kernel has there.
 *
 * For few queries ggml keeps the weighted sum of values in F16 and takes one key after the other:
 *   new maximum:  sum = f16(sum * shrink), shrink = exp(old - new), weight 1 ;  else weight = exp(score - max)
 *   sum = f16(fma(value, weight, sum)) ;  total = fma(total, shrink, weight)
 * with queries rounded to F16. On CPUs with native F16 arithmetic, whose results we take as the measure,
 * shrink and weight are themselves rounded to F16 for every whole 128 values of a head. That rounding (2^-11) is a thousand times our own and would be the
 * largest difference between the two on short texts, so it is reproduced for queries at positions below
 * MOE_F16_POSITIONS. It costs about five times attention() a key, which few positions can afford.
 *
 * Source: the definition of ggml_compute_forward_flash_attn_ext for one query and F16 keys and values. */

enum { ATTN_F16_LANES = 128 };

MOE_INLINE float f32_round_f16(float x) { return f32_from_f16(f16_from_f32(x)); }

/* Scores of n keys, 16 at a time. The products of one key are summed as ggml sums them: whole blocks of
 * 64 elements in 64 partial sums that are then halved, the rest one by one in double. */
static void f16_scores(const moe_attn *a, const float *q, size_t n, float *score) {
    const size_t whole = a->head_dim_k & ~(size_t)63;
    for (size_t j = 0; j < n; j += 16) {
        const uint16_t *k = a->k + j / MOE_KV_TILE * a->k_tile_stride + j % MOE_KV_TILE;
        v16f part[64];
        for (size_t i = 0; i < 64; i++) part[i] = v16_zero();
        for (size_t d = 0; d < whole; d++) {
            part[d % 64] = v16_madd(v16_load_f16(k + d * MOE_KV_TILE), v16_set1(q[d]), part[d % 64]);
        }
        for (size_t half = 32; half > 0; half /= 2) {
            for (size_t i = 0; i < half; i++) part[i] = v16_add(part[i], part[i + half]);
        }
        v16_store(score + j, part[0]);
        for (size_t l = 0; l < 16 && whole < a->head_dim_k; l++) {
            double sum = score[j + l];
            for (size_t d = whole; d < a->head_dim_k; d++) {
                sum += (double)(f32_from_f16(k[d * MOE_KV_TILE + l]) * q[d]);
            }
            score[j + l] = (float)sum;
        }
    }
}

/* sum over keys of one block of at most ATTN_F16_LANES values of a head */
static void f16_values(size_t lanes, size_t n, const float *shrink, const float *weight, const uint16_t *v,
                       size_t v_stride, float inv_total, float *out) {
    v16f acc[ATTN_F16_LANES / 16];
    const size_t n_acc = (lanes + 15) / 16;
    for (size_t c = 0; c < n_acc; c++) acc[c] = v16_zero();
    for (size_t j = 0; j < n; j++, v += v_stride) {
        const int native = lanes == ATTN_F16_LANES;
        const v16f w = v16_set1(native ? f32_round_f16(weight[j]) : weight[j]);
        const v16f m = v16_set1(native ? f32_round_f16(shrink[j]) : shrink[j]);
        if (shrink[j] != 1.0f) {
            for (size_t c = 0; c < n_acc; c++) acc[c] = v16_round_f16(v16_mul(acc[c], m));
        }
        for (size_t c = 0; c < n_acc; c++) {
            v16f x = 16 * c + 16 <= lanes ? v16_load_f16(v + 16 * c) : v16_load_f16_n(v + 16 * c, lanes - 16 * c);
            acc[c] = native ? v16_madd_f16(x, w, acc[c]) : v16_round_f16(v16_madd(x, w, acc[c]));
        }
    }
    for (size_t c = 0; c < n_acc; c++) {
        size_t left = lanes - 16 * c;
        v16_store_n(out + 16 * c, v16_mul(acc[c], v16_set1(inv_total)), left < 16 ? left : 16);
    }
}

static void attention_f16(const moe_attn *a) {
    float score[MOE_F16_POSITIONS], shrink[MOE_F16_POSITIONS];
    float *q = a->scratch;
    for (size_t i = 0; i < a->n_q; i++) {
        const size_t n = (size_t)a->n_kv[i];
        float max = -INFINITY, total = 0;
        for (size_t d = 0; d < a->head_dim_k; d++) q[d] = f32_round_f16(a->q[i][d]);
        f16_scores(a, q, n, score);
        for (size_t j = 0; j < n; j++) {
            float s = score[j] * a->scale, old = max;
            shrink[j] = score[j] = 1.0f;
            if (s > max) {
                max = s;
                shrink[j] = old == -INFINITY ? 0.0f : f32_exp(old - max);
            } else {
                score[j] = f32_exp(s - max);
            }
            total = f32_madd(total, shrink[j], score[j]);
        }
        for (size_t d = 0; d < a->head_dim_v; d += ATTN_F16_LANES) {
            size_t lanes = a->head_dim_v - d < ATTN_F16_LANES ? a->head_dim_v - d : ATTN_F16_LANES;
            f16_values(lanes, n, shrink, score, a->v + d, a->v_stride, 1.0f / total, a->out[i] + d);
        }
    }
}
