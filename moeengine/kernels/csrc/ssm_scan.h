/* The scan of a Mamba-2 layer; moe_ssm in moe_table.h is the contract. Laid out as delta_rule.h is, and for the same
 * reasons: rows do not see each other, and one of the usual length stays in registers while tokens pass by. */
enum {
    SSM_TOKENS = 32,
    SSM_ROWS = 2, /* at once */
    SSM_USUAL = 8 /* vectors of a row of 128 */
};

/* n_rows (a constant) rows of 128 from row r on, tokens t0 <= t < t1 */
MOE_INLINE void ssm_usual_rows(const moe_ssm *m, size_t r, size_t n_rows, size_t t0, size_t t1) {
    v16f s[SSM_ROWS][SSM_USUAL];
    float *state = m->state + r * m->dim;
    for (size_t i = 0; i < n_rows; i++) {
        for (size_t j = 0; j < SSM_USUAL; j++) s[i][j] = v16_load(state + i * m->dim + 16 * j);
    }
    for (size_t t = t0; t < t1; t++) {
        const float *b = m->b + t * m->dim, *c = m->c + t * m->dim;
        float *x = m->x + t * m->x_stride + r;
        const v16f decay = v16_set1(m->decay[t]);
        for (size_t i = 0; i < n_rows; i++) {
            const v16f in = v16_set1(x[i] * m->dt[t]);
            v16f sum[4] = {v16_zero(), v16_zero(), v16_zero(), v16_zero()};
            for (size_t j = 0; j < SSM_USUAL; j++) {
                s[i][j] = v16_madd(s[i][j], decay, v16_mul(v16_load(b + 16 * j), in));
                sum[j % 4] = v16_madd(s[i][j], v16_load(c + 16 * j), sum[j % 4]);
            }
            x[i] = sum_of_four(sum[0], sum[1], sum[2], sum[3]) + x[i] * m->skip;
        }
    }
    for (size_t i = 0; i < n_rows; i++) {
        for (size_t j = 0; j < SSM_USUAL; j++) v16_store(state + i * m->dim + 16 * j, s[i][j]);
    }
}

/* row r of any length: the same sums, the row in memory */
static void ssm_any_row(const moe_ssm *m, size_t r, size_t t0, size_t t1) {
    float *s = m->state + r * m->dim;
    for (size_t t = t0; t < t1; t++) {
        const float *b = m->b + t * m->dim, *c = m->c + t * m->dim;
        float *x = m->x + t * m->x_stride + r;
        const v16f decay = v16_set1(m->decay[t]), in = v16_set1(*x * m->dt[t]);
        v16f sum[4] = {v16_zero(), v16_zero(), v16_zero(), v16_zero()};
        for (size_t i = 0; i < m->dim; i += 16) {
            size_t n = m->dim - i < 16 ? m->dim - i : 16, j = i / 16 % 4;
            v16f a = v16_madd(load_lanes(s + i, n), decay, v16_mul(load_lanes(b + i, n), in));
            store_lanes(s + i, a, n);
            sum[j] = v16_madd(a, load_lanes(c + i, n), sum[j]);
        }
        *x = sum_of_four(sum[0], sum[1], sum[2], sum[3]) + *x * m->skip;
    }
}

static void ssm_scan(const moe_ssm *m) {
    for (size_t t0 = 0; t0 < m->n_tokens; t0 += SSM_TOKENS) {
        size_t t1 = m->n_tokens - t0 < SSM_TOKENS ? m->n_tokens : t0 + SSM_TOKENS, r = 0;
        if (m->dim == 16 * SSM_USUAL) {
            for (; r + SSM_ROWS <= m->n_rows; r += SSM_ROWS) ssm_usual_rows(m, r, SSM_ROWS, t0, t1);
            for (; r < m->n_rows; r++) ssm_usual_rows(m, r, 1, t0, t1);
        }
        for (; r < m->n_rows; r++) ssm_any_row(m, r, t0, t1);
    }
}
