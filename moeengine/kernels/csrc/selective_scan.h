/* The scan of a Mamba-1 layer; moe_selective in moe_table.h is the contract. Lanes are channels, so that no sum goes across
 * them; 16 channels with a state of the usual length stay in registers while tokens pass by. */
enum { SELECTIVE_USUAL = 16 /* values of a channel's state */ };

/* n channels (1..16) from channel i on, over all tokens; dim a constant where it can be */
MOE_INLINE void selective_channels(const moe_selective *m, size_t i, size_t n, size_t dim, v16f *s) {
    float *state = m->state + i;
    const float *a = m->a + i;
    const v16f skip = load_lanes(m->skip + i, n);
    for (size_t k = 0; k < dim; k++) s[k] = load_lanes(state + k * m->row_stride, n);
    for (size_t t = 0; t < m->n_tokens; t++) {
        const float *b = m->b + t * m->b_stride, *c = m->c + t * m->b_stride;
        float *x = m->x + t * m->x_stride + i;
        const v16f in = load_lanes(x, n), dt = load_lanes(m->dt + t * m->x_stride + i, n), step = v16_mul(in, dt);
        v16f sum = v16_zero();
        for (size_t k = 0; k < dim; k++) {
            const v16f decay = v16_exp(v16_mul(dt, load_lanes(a + k * m->row_stride, n)));
            s[k] = v16_madd(s[k], decay, v16_mul(v16_set1(b[k]), step));
            sum = v16_madd(s[k], v16_set1(c[k]), sum);
        }
        store_lanes(x, v16_add(sum, v16_mul(in, skip)), n);
    }
    for (size_t k = 0; k < dim; k++) store_lanes(state + k * m->row_stride, s[k], n);
}

/* the same for a state of any length, which stays in memory */
static void selective_any(const moe_selective *m, size_t i, size_t n) {
    const v16f skip = load_lanes(m->skip + i, n);
    for (size_t t = 0; t < m->n_tokens; t++) {
        const float *b = m->b + t * m->b_stride, *c = m->c + t * m->b_stride;
        float *x = m->x + t * m->x_stride + i;
        const v16f in = load_lanes(x, n), dt = load_lanes(m->dt + t * m->x_stride + i, n), step = v16_mul(in, dt);
        v16f sum = v16_zero();
        for (size_t k = 0; k < m->dim; k++) {
            float *state = m->state + k * m->row_stride + i;
            const v16f decay = v16_exp(v16_mul(dt, load_lanes(m->a + k * m->row_stride + i, n)));
            const v16f s = v16_madd(load_lanes(state, n), decay, v16_mul(v16_set1(b[k]), step));
            store_lanes(state, s, n);
            sum = v16_madd(s, v16_set1(c[k]), sum);
        }
        store_lanes(x, v16_add(sum, v16_mul(in, skip)), n);
    }
}

static void selective_scan(const moe_selective *m) {
    v16f s[SELECTIVE_USUAL];
    for (size_t i = 0; i < m->n_channels; i += 16) {
        const size_t n = m->n_channels - i < 16 ? m->n_channels - i : 16;
        if (m->dim == SELECTIVE_USUAL && n == 16) {
            selective_channels(m, i, 16, SELECTIVE_USUAL, s);
        } else {
            selective_any(m, i, n);
        }
    }
}
