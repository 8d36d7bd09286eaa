/* The gated delta rule; moe_delta in moe_table.h is the contract.
 *
 * Rows of the state do not see each other. So a row is loaded once, taken through many tokens, and stored:
 * in registers where its length is the usual one. Tokens are taken DELTA_TOKENS at a time, that keys and queries
 * stay in the nearest cache while all rows pass by. */
enum {
    DELTA_TOKENS = 32,
    DELTA_ROWS = 2, /* at once: one row's sums wait for each other, another's can be computed meanwhile */
    DELTA_USUAL = 8 /* vectors of a row of 128 */
};

MOE_INLINE float sum_of_four(v16f a, v16f b, v16f c, v16f d) { return v16_hsum(v16_add(v16_add(a, c), v16_add(b, d))); }

/* n_rows rows of 128 from row r on, tokens t0 <= t < t1; n_rows and by_element are constants */
MOE_INLINE void delta_usual_rows(const moe_delta *d, size_t r, size_t n_rows, size_t t0, size_t t1, int by_element) {
    v16f s[DELTA_ROWS][DELTA_USUAL];
    float *state = d->state + r * d->dim;
    for (size_t i = 0; i < n_rows; i++) {
        for (size_t j = 0; j < DELTA_USUAL; j++) s[i][j] = v16_load(state + i * d->dim + 16 * j);
    }
    for (size_t t = t0; t < t1; t++) {
        const float *k = d->k + t * d->dim, *q = d->q + t * d->dim;
        float *v = d->v + t * d->v_stride + r;
        const float *decays = d->decay + t * d->dim; /* by_element */
        const v16f decay = v16_set1(by_element ? 0.0f : d->decay[t]);
        for (size_t i = 0; i < n_rows; i++) {
            v16f sum[4] = {v16_zero(), v16_zero(), v16_zero(), v16_zero()};
            for (size_t j = 0; j < DELTA_USUAL; j++) {
                s[i][j] = v16_mul(s[i][j], by_element ? v16_load(decays + 16 * j) : decay);
                sum[j % 4] = v16_madd(s[i][j], v16_load(k + 16 * j), sum[j % 4]);
            }
            const v16f miss = v16_set1((v[i] - sum_of_four(sum[0], sum[1], sum[2], sum[3])) * d->beta[t]);
            for (size_t j = 0; j < 4; j++) sum[j] = v16_zero();
            for (size_t j = 0; j < DELTA_USUAL; j++) {
                s[i][j] = v16_madd(v16_load(k + 16 * j), miss, s[i][j]);
                sum[j % 4] = v16_madd(s[i][j], v16_load(q + 16 * j), sum[j % 4]);
            }
            v[i] = sum_of_four(sum[0], sum[1], sum[2], sum[3]) * d->scale;
        }
    }
    for (size_t i = 0; i < n_rows; i++) {
        for (size_t j = 0; j < DELTA_USUAL; j++) v16_store(state + i * d->dim + 16 * j, s[i][j]);
    }
}

/* row r of any length: the same sums, the row in memory */
static void delta_any_row(const moe_delta *d, size_t r, size_t t0, size_t t1) {
    float *s = d->state + r * d->dim;
    for (size_t t = t0; t < t1; t++) {
        const float *k = d->k + t * d->dim, *q = d->q + t * d->dim;
        float *v = d->v + t * d->v_stride + r;
        const v16f decay = v16_set1(d->by_element ? 0.0f : d->decay[t]);
        v16f sum[4] = {v16_zero(), v16_zero(), v16_zero(), v16_zero()};
        for (size_t i = 0; i < d->dim; i += 16) {
            size_t m = d->dim - i < 16 ? d->dim - i : 16, j = i / 16 % 4;
            v16f a = v16_mul(load_lanes(s + i, m), d->by_element ? load_lanes(d->decay + t * d->dim + i, m) : decay);
            store_lanes(s + i, a, m);
            sum[j] = v16_madd(a, load_lanes(k + i, m), sum[j]);
        }
        const v16f miss = v16_set1((*v - sum_of_four(sum[0], sum[1], sum[2], sum[3])) * d->beta[t]);
        for (size_t j = 0; j < 4; j++) sum[j] = v16_zero();
        for (size_t i = 0; i < d->dim; i += 16) {
            size_t m = d->dim - i < 16 ? d->dim - i : 16, j = i / 16 % 4;
            v16f a = v16_madd(load_lanes(k + i, m), miss, load_lanes(s + i, m));
            store_lanes(s + i, a, m);
            sum[j] = v16_madd(a, load_lanes(q + i, m), sum[j]);
        }
        *v = sum_of_four(sum[0], sum[1], sum[2], sum[3]) * d->scale;
    }
}

static void delta_rule(const moe_delta *d) {
    for (size_t t0 = 0; t0 < d->n_tokens; t0 += DELTA_TOKENS) {
        size_t t1 = d->n_tokens - t0 < DELTA_TOKENS ? d->n_tokens : t0 + DELTA_TOKENS, r = 0;
        if (d->dim == 16 * DELTA_USUAL && d->by_element) {
            for (; r + DELTA_ROWS <= d->n_rows; r += DELTA_ROWS) delta_usual_rows(d, r, DELTA_ROWS, t0, t1, 1);
            for (; r < d->n_rows; r++) delta_usual_rows(d, r, 1, t0, t1, 1);
        } else if (d->dim == 16 * DELTA_USUAL) {
            for (; r + DELTA_ROWS <= d->n_rows; r += DELTA_ROWS) delta_usual_rows(d, r, DELTA_ROWS, t0, t1, 0);
            for (; r < d->n_rows; r++) delta_usual_rows(d, r, 1, t0, t1, 0);
        }
        for (; r < d->n_rows; r++) delta_any_row(d, r, t0, t1);
    }
}

static void conv_silu(size_t n, size_t n_taps, const float *const *x, const float *w, size_t w_stride, const float *bias,
                      float *y) {
    const size_t whole = n & ~(size_t)15;
    for (size_t i = 0; i < n; i += 16) {
        size_t m = n - i < 16 ? n - i : 16;
        v16f sum = v16_zero();
        for (size_t j = 0; j < n_taps; j++) sum = v16_madd(load_lanes(x[j] + i, m), load_lanes(w + j * w_stride + i, m), sum);
        if (bias) sum = v16_add(sum, load_lanes(bias + i, m));
        store_lanes(y + i, i < whole ? v16_silu(sum) : sum, m);
    }
    for (size_t i = whole; i < n; i++) y[i] = y[i] / (1.0f + f32_exp(-y[i])); /* as in silu_mul */
}

static void sigmoid_mul(size_t n, const float *gate, const float *x, float *y) {
    for (size_t i = 0; i < n; i++) y[i] = x[i] * (1.0f / (1.0f + f32_exp(-gate[i])));
}

static void conv_mul(size_t n, size_t n_taps, const float *const *x, const float *w, size_t w_stride, const float *gate,
                     float *y) {
    for (size_t i = 0; i < n; i += 16) {
        size_t m = n - i < 16 ? n - i : 16;
        v16f sum = v16_zero();
        for (size_t j = 0; j < n_taps; j++) sum = v16_madd(load_lanes(x[j] + i, m), load_lanes(w + j * w_stride + i, m), sum);
        store_lanes(y + i, v16_mul(load_lanes(gate + i, m), sum), m);
    }
}
