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

/* 2^(i/32) */
__attribute__((unused)) static const double exp2_32nds[32] = {
    0x1.0000000000000p+0, 0x1.059b0d3158574p+0, 0x1.0b5586cf9890fp+0, 0x1.11301d0125b51p+0,
    0x1.172b83c7d517bp+0, 0x1.1d4873168b9aap+0, 0x1.2387a6e756238p+0, 0x1.29e9df51fdee1p+0,
    0x1.306fe0a31b715p+0, 0x1.371a7373aa9cbp+0, 0x1.3dea64c123422p+0, 0x1.44e086061892dp+0,
    0x1.4bfdad5362a27p+0, 0x1.5342b569d4f82p+0, 0x1.5ab07dd485429p+0, 0x1.6247eb03a5585p+0,
    0x1.6a09e667f3bcdp+0, 0x1.71f75e8ec5f74p+0, 0x1.7a11473eb0187p+0, 0x1.82589994cce13p+0,
    0x1.8ace5422aa0dbp+0, 0x1.93737b0cdc5e5p+0, 0x1.9c49182a3f090p+0, 0x1.a5503b23e255dp+0,
    0x1.ae89f995ad3adp+0, 0x1.b7f76f2fb5e47p+0, 0x1.c199bdd85529cp+0, 0x1.cb720dcef9069p+0,
    0x1.d5818dcfba487p+0, 0x1.dfc97337b9b5fp+0, 0x1.ea4afa2a490dap+0, 0x1.f50765b6e4540p+0,
};

/* exp(x) as the C library of the measure computes it, bit for bit (glibc 2.27 to 2.40): x =
 * (32 k + i + f) ln2 / 32, |f| <= 1/2; 2^k 2^(i/32) (1 + f (c2 + f (c1 + f c0))) in double, rounded once.
 * It is not always the float32 nearest to exp(x), so a better exp would not do. For x within -104 .. 89, or NaN; without
 * a branch, so that compilers make vectors of a loop. */
MOE_INLINE float f32_exp_within(float x) {
    const double scale = 0x1.71547652b82fep+5, round = 0x1.8p52;
    const double shifted = __builtin_fma(scale, (double)x, round), n = shifted - round;
    const double f = __builtin_fma(scale, (double)x, -n);
    const double high = __builtin_fma(0x1.c6af84b912394p-20, f, 0x1.ebfce50fac4f3p-13);
    const double low = __builtin_fma(0x1.62e42ff0c52d6p-6, f, 1.0);
    union {
        double d;
        uint64_t u;
    } whole = {.d = shifted}, power; /* the last bits of `shifted` are 32 k + i */
    power.u = ((whole.u >> 5) + 1023) << 52;
    return (float)(__builtin_fma(high, f * f, low) * (exp2_32nds[whole.u & 31] * power.d));
}
MOE_INLINE float f32_exp(float x) {
    const float y = f32_exp_within(x > -104.0f ? x < 89.0f ? x : 89.0f : -104.0f);
    return x == x ? y : x;
}

/* f32_exp of n floats, a multiple of 16 */
MOE_INLINE void f32_exp_row(size_t n, float *x) {
    for (size_t i = 0; i < n; i += 16) {
        v16_store(x + i, v16_max(v16_set1(-104.0f), v16_min(v16_set1(89.0f), v16_load(x + i))));
    }
    for (size_t i = 0; i < n; i++) x[i] = f32_exp_within(x[i]);
}

/* x / (1 + e^-x) */
MOE_INLINE v16f v16_silu(v16f x) {
    v16f e = v16_exp(v16_sub(v16_zero(), x));
    return v16_div(x, v16_add(v16_set1(1.0f), e));
}

/* 1 - 2 / (e^2x + 1); the error is 1e-7 of 1, not of the result */
MOE_INLINE v16f v16_tanh(v16f x) {
    v16f one = v16_set1(1.0f), e = v16_exp(v16_add(x, x));
    return v16_sub(one, v16_div(v16_set1(2.0f), v16_add(e, one)));
}
#endif
