/* Row operations; moe_table.h says what each promises. Written once in the vocabulary of
 * simd/<isa>.h, so every instruction set gives the same bytes. */
#include "simd/math.h"

/* A double sum of float32 numbers, values or their squares: long rows lose nothing, and the order hardly matters. */
MOE_INLINE double row_sum(size_t n, const float *x, int of_squares) {
    double part[16] = {0};
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        for (size_t l = 0; l < 16; l++) part[l] += (double)(of_squares ? x[i + l] * x[i + l] : x[i + l]);
    }
    for (; i < n; i++) part[i % 16] += (double)(of_squares ? x[i] * x[i] : x[i]);
    for (size_t half = 8; half > 0; half /= 2) {
        for (size_t l = 0; l < half; l++) part[l] += part[l + half];
    }
    return part[0];
}

/* m lanes, 1..16; whole vectors do without a mask, which is slow to store and load back on AVX2 */
MOE_INLINE v16f load_lanes(const float *p, size_t m) { return m == 16 ? v16_load(p) : v16_load_n(p, m); }
MOE_INLINE void store_lanes(float *p, v16f a, size_t m) {
    if (m == 16) {
        v16_store(p, a);
    } else {
        v16_store_n(p, a, m);
    }
}

static void rms_norm(size_t n, const float *x, const float *w, float eps, float *y) {
    float mean = (float)(row_sum(n, x, 1) / (double)n);
    v16f inv = v16_set1(1.0f / __builtin_sqrtf(mean + eps));
    for (size_t i = 0; i < n; i += 16) {
        size_t m = n - i < 16 ? n - i : 16;
        v16f v = v16_mul(load_lanes(x + i, m), inv);
        store_lanes(y + i, w ? v16_mul(v, load_lanes(w + i, m)) : v, m);
    }
}

/* out[i] = expr of a = xs[i] and b = ys[i], 16 lanes at a time */
#define MOE_ROW_LOOP(n, xs, ys, out, expr)                                    \
    for (size_t i = 0; i < (n); i += 16) {                                    \
        size_t m = (n)-i < 16 ? (n)-i : 16;                                   \
        v16f a = load_lanes((xs) + i, m), b = load_lanes((ys) + i, m);        \
        store_lanes((out) + i, expr, m);                                      \
    }

/* The mean is the quotient of float32 numbers, as in ggml. */
static void layer_norm(size_t n, const float *x, const float *w, float eps, float *y) {
    const v16f mean = v16_set1((float)row_sum(n, x, 0) / (float)n);
    MOE_ROW_LOOP(n, x, x, y, ((void)b, v16_sub(a, mean)));
    rms_norm(n, y, w, eps, y);
}

static void add_rows(size_t n, const float *x0, const float *x1, float *y) {
    MOE_ROW_LOOP(n, x0, x1, y, v16_add(a, b));
}

static void mul_rows(size_t n, const float *x0, const float *x1, float *y) {
    MOE_ROW_LOOP(n, x0, x1, y, v16_mul(a, b));
}

static void scale_row(size_t n, float factor, const float *x, float *y) {
    const v16f f = v16_set1(factor);
    MOE_ROW_LOOP(n, x, x, y, ((void)b, v16_mul(f, a)));
}

static int add_weighted(const moe_weighted *a) {
    v16f zeros[4]; /* plus 0 * x, which is NaN for a NaN or an infinite x; four, or one sum would wait for itself */
    for (int c = 0; c < 4; c++) zeros[c] = v16_zero();
    for (size_t k = 0; k < a->n_rows; k++) {
        const int32_t p = a->pair[k];
        const v16f weight = v16_set1(a->weight[p]);
        const float *x = a->x + k * a->x_stride;
        float *y = a->y + (size_t)(p / a->n_used) * a->y_stride;
        size_t i = 0;
        for (; i + 64 <= a->n; i += 64)
#pragma GCC unroll 4
            for (size_t c = 0; c < 4; c++) {
                const v16f v = v16_load(x + i + 16 * c);
                zeros[c] = v16_madd(v16_zero(), v, zeros[c]);
                v16_store(y + i + 16 * c, v16_madd(weight, v, v16_load(y + i + 16 * c)));
            }
        for (; i < a->n; i += 16) {
            const size_t m = a->n - i < 16 ? a->n - i : 16;
            const v16f v = load_lanes(x + i, m);
            zeros[0] = v16_madd(v16_zero(), v, zeros[0]);
            store_lanes(y + i, v16_madd(weight, v, load_lanes(y + i, m)), m);
        }
    }
    return v16_hsum(v16_add(v16_add(zeros[0], zeros[1]), v16_add(zeros[2], zeros[3]))) == 0.0f;
}

/* As in ggml, what is left of a row after whole vectors goes through the C library's exp. */
static void silu_mul(size_t n, const float *gate, const float *up, float *y) {
    const size_t whole = n & ~(size_t)15;
    MOE_ROW_LOOP(whole, gate, up, y, v16_mul(v16_silu(a), b));
    for (size_t i = whole; i < n; i++) y[i] = gate[i] / (1.0f + f32_exp(-gate[i])) * up[i];
}

static void relu_mul(size_t n, const float *gate, const float *up, float *y) {
    const v16f zero = v16_zero();
    MOE_ROW_LOOP(n, gate, up, y, v16_mul(v16_max(zero, a), b)); /* the bound first, so that NaN stays NaN */
}

/* As in ggml, which looks GELU up in a table of all F16 numbers within -10 .. 10; beyond, it is 0 and the gate itself. The
 * bounds come first in min and max, so that NaN stays NaN: it is added after the look-up. */
static void gelu_mul(size_t n, const float *gate, const float *up, float *y) {
    const v16f ten = v16_set1(10.0f), least = v16_set1(-10.0f);
    for (size_t i = 0; i < n; i += 16) {
        const size_t m = n - i < 16 ? n - i : 16;
        const v16f x = load_lanes(gate + i, m), beyond = v16_max(v16_zero(), v16_sub(x, ten));
        uint16_t h[16];
        v16_store_f16(h, v16_max(least, v16_min(ten, x)));
        for (size_t l = 0; l < 16; l++) {
            const unsigned size = h[l] & 0x7fff, at = size < MOE_GELU_HALF ? size : MOE_GELU_HALF - 1;
            h[l] = moe_gelu_values[h[l] & 0x8000 ? MOE_GELU_HALF + at : at];
        }
        store_lanes(y + i, v16_mul(v16_add(v16_load_f16(h), beyond), load_lanes(up + i, m)), m);
    }
}

/* As in ggml, the gate is bounded after its silu, and what is left of a row goes as in silu_mul. */
static void silu_bounded(size_t n, const float *gate, const float *up, float bound, float *y) {
    const size_t whole = n & ~(size_t)15;
    const v16f limit = v16_set1(bound), least = v16_set1(-bound);
    MOE_ROW_LOOP(whole, gate, up, y, v16_mul(v16_min(limit, v16_silu(a)), v16_max(least, v16_min(limit, b))));
    for (size_t i = whole; i < n; i++) {
        const float g = gate[i] / (1.0f + f32_exp(-gate[i])), u = up[i] > bound ? bound : up[i] < -bound ? -bound : up[i];
        y[i] = (g > bound ? bound : g) * u;
    }
}

static void softcap(size_t n, float cap, const float *x, float *y) {
    const v16f c = v16_set1(cap), inverse = v16_set1(1.0f / cap);
    MOE_ROW_LOOP(n, x, x, y, ((void)b, v16_mul(c, v16_tanh(v16_mul(a, inverse)))));
}

/* g * sigmoid(-slope g) * (u + beyond) of g = min(gate, bound), u = up within -bound .. bound. As in ggml, every exp is the C
 * library's, in a loop of its own, which compilers turn into vectors. Bounds come first in min and max, so that NaN stays NaN.
 * Source: ggml_compute_forward_swiglu_oai_f32 and .._swiglu_clamp_f32; slope and bound of the first are those of gpt-oss. */
enum { SWIGLU_STEP = 64 };
MOE_INLINE void swiglu_bounded(size_t n, const float *gate, const float *up, float bound, float slope, float beyond, float *y) {
    const v16f limit = v16_set1(bound), least = v16_set1(-bound), one = v16_set1(1.0f);
    for (; n > 0; gate += SWIGLU_STEP, up += SWIGLU_STEP, y += SWIGLU_STEP) {
        const size_t step = n < SWIGLU_STEP ? n : SWIGLU_STEP;
        float g[SWIGLU_STEP], e[SWIGLU_STEP];
        for (size_t i = 0; i < step; i += 16) {
            v16f x = v16_min(limit, load_lanes(gate + i, step - i < 16 ? step - i : 16));
            v16_store(g + i, x);
            v16_store(e + i, v16_mul(v16_set1(slope), x));
        }
        f32_exp_row((step + 15) & ~(size_t)15, e);
        MOE_ROW_LOOP(step, g, up, y, v16_mul(v16_div(a, v16_add(one, v16_load(e + i))),
                                             v16_add(v16_max(least, v16_min(limit, b)), v16_set1(beyond))));
        n -= step;
    }
}
static void swiglu_oai(size_t n, const float *gate, const float *up, float *y) {
    swiglu_bounded(n, gate, up, 7.0f, -1.702f, 1.0f, y);
}
static void swiglu_clamp(size_t n, const float *gate, const float *up, float bound, float *y) {
    swiglu_bounded(n, gate, up, bound, -1.0f, 0.0f, y);
}

/* Each pair (a, b) to (fma(a, c, -(b s)), fma(a, s, b c)), the way a compiler contracts a c - b s and a s + b c. */
static void rope_neighbours(size_t n, const float *cs, float *x) {
    for (size_t i = 0; i < n; i += 16) {
        size_t m = n - i < 16 ? n - i : 16;
        v16f v = load_lanes(x + i, m), t = load_lanes(cs + i, m);
        v16f second = v16_addsub(v16_zero(), v16_mul(v16_dup_odd(v), v16_swap(t)));
        store_lanes(x + i, v16_madd(v16_dup_even(v), t, second), m);
    }
}

static void rope_halves(size_t half, const float *cs, float *lo, float *hi) {
    for (size_t i = 0; i < half; i += 16) {
        size_t m = half - i < 16 ? half - i : 16;
        v16f t0 = load_lanes(cs + 2 * i, m < 8 ? 2 * m : 16);
        v16f t1 = m > 8 ? load_lanes(cs + 2 * i + 16, 2 * m - 16) : t0;
        v16f c = v16_even(t0, t1), s = v16_odd(t0, t1);
        v16f a = load_lanes(lo + i, m), b = load_lanes(hi + i, m);
        store_lanes(lo + i, v16_madd(a, c, v16_sub(v16_zero(), v16_mul(b, s))), m);
        store_lanes(hi + i, v16_madd(a, s, v16_mul(b, c)), m);
    }
}

static void rope(size_t n_rot, const float *cs, int neox, float *x) {
    if (neox) {
        rope_halves(n_rot / 2, cs, x, x + n_rot / 2);
    } else {
        rope_neighbours(n_rot, cs, x);
    }
}

static void f32_to_f16(size_t n, const float *x, uint16_t *y) {
    size_t i = 0;
    for (; i + 16 <= n; i += 16) v16_store_f16(y + i, v16_load(x + i));
    if (i < n) v16_store_f16_n(y + i, v16_load_n(x + i, n - i), n - i);
}

static void f16_to_f32(size_t n, const uint16_t *x, float *y) {
    size_t i = 0;
    for (; i + 16 <= n; i += 16) v16_store(y + i, v16_load_f16(x + i));
    if (i < n) v16_store_n(y + i, v16_load_f16_n(x + i, n - i), n - i);
}

/* The sum is double, of the sums of 16, as in ggml; the rest of a row as in silu_mul. */
static int softmax(size_t n, float *x) {
    const size_t whole = n & ~(size_t)15;
    const v16f lowest = v16_set1(-INFINITY);
    v16f top = lowest;
    double total = 0;
    for (size_t i = 0; i < n; i += 16) {
        size_t m = n - i < 16 ? n - i : 16;
        top = v16_max(v16_first(m, load_lanes(x + i, m), lowest), top);
    }
    float max = v16_hmax(top);
    if (!(max - max == 0.0f)) return 0;
    for (size_t i = 0; i < whole; i += 16) {
        v16f e = v16_exp(v16_sub(v16_load(x + i), v16_set1(max)));
        v16_store(x + i, e);
        total += (double)v16_hsum(e);
    }
    for (size_t i = whole; i < n; i++) {
        x[i] = f32_exp(x[i] - max);
        total += (double)x[i];
    }
    if (!(total - total == 0.0)) return 0; /* a NaN that is not the maximum */
    v16f inv = v16_set1((float)(1.0 / total));
    MOE_ROW_LOOP(n, x, x, x, ((void)b, v16_mul(a, inv)));
    return 1;
}
