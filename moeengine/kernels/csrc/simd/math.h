/* exp and what follows from it, in the vocabulary of simd/<isa>.h: the same bytes everywhere. */
#ifndef MOE_SIMD_MATH_H
#define MOE_SIMD_MATH_H

/* e^x, error below 2 units in the last place; correct limits at +-infinity, gradual underflow, NaN stays
 * NaN. x = n ln2 + r; e^r by a polynomial, |r| <= ln2/2. Its coefficients, their order and the two parts of ln2
 * are those that ggml's vector kernels use (from Arm's optimized routines), so that weights and activations are
 * the same bytes. */
MOE_INLINE v16f v16_exp(v16f x) {
    const v16f round = v16_set1(0x1.8p23f); /* adding it leaves the nearest whole number */
    x = v16_max(v16_set1(-104.0f), v16_min(v16_set1(89.0f), x));
    v16f n = v16_sub(v16_madd(x, v16_set1(0x1.715476p0f), round), round);
    v16f r = v16_nmadd(n, v16_set1(0x1.62e4p-1f), x);
    r = v16_nmadd(n, v16_set1(0x1.7f7d1cp-20f), r);
    v16f r2 = v16_mul(r, r);
    v16f high = v16_madd(v16_set1(0x1.0e402p-7f), r, v16_set1(0x1.573e2ep-5f));
    v16f middle = v16_madd(v16_set1(0x1.555e66p-3f), r, v16_set1(0x1.fffdb6p-2f));
    v16f low = v16_madd(v16_set1(0x1.ffffecp-1f), r, v16_set1(1.0f));
    return v16_scale2(v16_madd(v16_madd(high, r2, middle), r2, low), n);
}

MOE_INLINE float f32_exp(float x) {
    float y[16];
    v16_store(y, v16_exp(v16_set1(x)));
    return y[0];
}

/* x / (1 + e^-x) */
MOE_INLINE v16f v16_silu(v16f x) {
    v16f e = v16_exp(v16_sub(v16_zero(), x));
    return v16_div(x, v16_add(v16_set1(1.0f), e));
}

/* x/2 * (1 + tanh(u)) = x / (1 + e^-2u), u = sqrt(2/pi) * (x + 0.044715 x^3)
 * Source: Hendrycks and Gimpel, "Gaussian Error Linear Units", section 2. */
MOE_INLINE v16f v16_gelu(v16f x) {
    v16f t = v16_madd(v16_mul(x, x), v16_set1(0.044715f), v16_set1(1.0f));
    v16f u2 = v16_mul(v16_mul(x, v16_set1(-1.5957691216057308f)), t);
    return v16_div(x, v16_add(v16_set1(1.0f), v16_exp(u2)));
}

/* 1 - 2 / (e^2x + 1); the error is 1e-7 of 1, not of the result */
MOE_INLINE v16f v16_tanh(v16f x) {
    v16f one = v16_set1(1.0f), e = v16_exp(v16_add(x, x));
    return v16_sub(one, v16_div(v16_set1(2.0f), v16_add(e, one)));
}
#endif
