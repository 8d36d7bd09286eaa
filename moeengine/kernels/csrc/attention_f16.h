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

/* 2^(i/32) */
static const double exp2_32nds[32] = {
    0x1.0000000000000p+0, 0x1.059b0d3158574p+0, 0x1.0b5586cf9890fp+0, 0x1.11301d0125b51p+0,
    0x1.172b83c7d517bp+0, 0x1.1d4873168b9aap+0, 0x1.2387a6e756238p+0, 0x1.29e9df51fdee1p+0,
    0x1.306fe0a31b715p+0, 0x1.371a7373aa9cbp+0, 0x1.3dea64c123422p+0, 0x1.44e086061892dp+0,
    0x1.4bfdad5362a27p+0, 0x1.5342b569d4f82p+0, 0x1.5ab07dd485429p+0, 0x1.6247eb03a5585p+0,
    0x1.6a09e667f3bcdp+0, 0x1.71f75e8ec5f74p+0, 0x1.7a11473eb0187p+0, 0x1.82589994cce13p+0,
    0x1.8ace5422aa0dbp+0, 0x1.93737b0cdc5e5p+0, 0x1.9c49182a3f090p+0, 0x1.a5503b23e255dp+0,
    0x1.ae89f995ad3adp+0, 0x1.b7f76f2fb5e47p+0, 0x1.c199bdd85529cp+0, 0x1.cb720dcef9069p+0,
    0x1.d5818dcfba487p+0, 0x1.dfc97337b9b5fp+0, 0x1.ea4afa2a490dap+0, 0x1.f50765b6e4540p+0,
};

/* exp(x) for x <= 0 as the C library of the measure computes it, bit for bit (glibc 2.27 to 2.40): x =
 * (32 k + i + f) ln2 / 32, |f| <= 1/2; 2^k 2^(i/32) (1 + f (c2 + f (c1 + f c0))) in double, rounded once.
 * It is not always the float32 nearest to exp(x), so a better exp would not do. */
static float exp_libm(float x) {
    if (!(x > -104.0f)) return x == x ? 0.0f : x;
    const double scale = 0x1.71547652b82fep+5, round = 0x1.8p52;
    const double shifted = __builtin_fma(scale, (double)x, round), n = shifted - round;
    const double f = __builtin_fma(scale, (double)x, -n);
    const int64_t k = (int64_t)n;
    const double high = __builtin_fma(0x1.c6af84b912394p-20, f, 0x1.ebfce50fac4f3p-13);
    const double low = __builtin_fma(0x1.62e42ff0c52d6p-6, f, 1.0);
    union {
        uint64_t u;
        double d;
    } power = {(uint64_t)(1023 + (k >> 5)) << 52};
    return (float)(__builtin_fma(high, f * f, low) * (exp2_32nds[k & 31] * power.d));
}

/* of 16 keys: sum of every 64th product from element i on */
MOE_INLINE v16f f16_partial_score(const uint16_t *k, const float *q, size_t i, size_t whole) {
    v16f sum = v16_zero();
    for (size_t d = i; d < whole; d += 64) {
        sum = v16_madd(v16_load_f16(k + d * MOE_KV_TILE), v16_set1(q[d]), sum);
    }
    return sum;
}

/* Scores of n keys, 16 at a time. The products of one key are summed as ggml sums them: whole blocks of
 * 64 elements in 64 partial sums that are then halved, the rest one by one in double. */
static void f16_scores(const moe_attn *a, const float *q, size_t n, float *score) {
    const size_t whole = a->head_dim_k & ~(size_t)63;
    for (size_t j = 0; j < n; j += 16) {
        const uint16_t *k = a->k + j / MOE_KV_TILE * a->k_tile_stride + j % MOE_KV_TILE;
        v16f part[32]; /* of 64: each is added to the one 32 further on at once */
        for (size_t i = 0; i < 32; i++) {
            part[i] = v16_add(f16_partial_score(k, q, i, whole), f16_partial_score(k, q, i + 32, whole));
        }
        for (size_t half = 16; half > 0; half /= 2) {
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
                shrink[j] = old == -INFINITY ? 0.0f : exp_libm(old - max);
            } else {
                score[j] = exp_libm(s - max);
            }
            total = f32_madd(total, shrink[j], score[j]);
        }
        for (size_t d = 0; d < a->head_dim_v; d += ATTN_F16_LANES) {
            size_t lanes = a->head_dim_v - d < ATTN_F16_LANES ? a->head_dim_v - d : ATTN_F16_LANES;
            f16_values(lanes, n, shrink, score, a->v + d, a->v_stride, 1.0f / total, a->out[i] + d);
        }
    }
}
