/* The self-check of tiles: products of blocks at their extremes, by tiles and by AVX-512, must be the same bytes. Run
 * once, before an instruction set with tiles is offered. */
enum { MOE_CHECK_ROWS = 18, MOE_CHECK_X = 37, MOE_CHECK_IN = 512 };

typedef struct moe_check_memory {
    uint8_t w[MOE_CHECK_ROWS * MOE_CHECK_IN * 2], x[MOE_CHECK_X * MOE_CHECK_IN * 2]; /* quantized: less than 2 bytes a value */
    float values[MOE_CHECK_IN], out[2][MOE_CHECK_X][MOE_CHECK_ROWS];
} __attribute__((aligned(64))) moe_check_memory;

/* Blocks of one byte each, except that scales (half floats at one end of a block) are about 1; and blocks of any bytes:
 * what is infinite or not a number in one product is in the other. */
static void moe_check_weights(uint8_t *w, size_t row_bytes, size_t bytes) {
    static const uint8_t all[] = {0x00, 0xff, 0x7f, 0x80, 0x0f, 0xf0, 0x55, 0xaa};
    uint32_t random = 1;
    for (size_t r = 0; r < MOE_CHECK_ROWS; r++)
        for (size_t i = 0; i < row_bytes; i++) {
            random = random * 1664525 + 1013904223;
            uint8_t one = r >= sizeof all ? (uint8_t)(random >> 24) : i % bytes < 4 || i % bytes >= bytes - 4 ? 0x3c : all[r];
            w[r * row_bytes + i] = one;
        }
}

/* Rows whose integers are all at one end, at both ends, and any. */
static void moe_check_activations(moe_check_memory *c, const moe_x *format, size_t row_bytes) {
    uint32_t random = 2;
    for (size_t t = 0; t < MOE_CHECK_X; t++) {
        for (size_t i = 0; i < MOE_CHECK_IN; i++) {
            random = random * 1664525 + 1013904223;
            float v = 0x1p-31f * (float)(int32_t)random, one = t % 4 == 0 || (t % 4 == 2 && v < 0) ? -1.0f : 1.0f;
            c->values[i] = t % 4 == 3 ? v : one;
        }
        format->quantize_row(MOE_CHECK_IN, c->values, c->x + t * row_bytes);
    }
}

/* the same bits, or not a number in both */
static int moe_check_same(const float *a, const float *b, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (f32_bits(a[i]) != f32_bits(b[i]) && (a[i] == a[i] || b[i] == b[i])) return 0;
    return 1;
}

static const char *moe_check_types(moe_check_memory *c) {
    for (size_t id = 0; id < MOE_TYPE_MAX; id++) {
        const moe_type *ours = &MOE_ISA_SYMBOL.types[id], *theirs = &moe_isa_avx512.types[id];
        if (ours->mul_mat == theirs->mul_mat) continue;
        const size_t row_bytes = MOE_CHECK_IN / ours->block * ours->bytes;
        const size_t x_bytes = moe_x_row_bytes(&moe_isa_avx512, ours->x_format, MOE_CHECK_IN);
        moe_check_weights(c->w, row_bytes, ours->bytes);
        moe_check_activations(c, &moe_isa_avx512.x[ours->x_format], x_bytes);
        moe_mul m = {MOE_CHECK_IN, MOE_CHECK_ROWS, c->w, row_bytes, MOE_CHECK_X, c->x, x_bytes, c->out[0][0], MOE_CHECK_ROWS};
        theirs->mul_mat(&m);
        memset(c->out[1], 0xff, sizeof c->out[1]);
        m.out = c->out[1][0];
        ours->mul_mat(&m);
        if (!moe_check_same(c->out[0][0], c->out[1][0], MOE_CHECK_X * MOE_CHECK_ROWS)) return ours->name;
    }
    return NULL;
}

/* NULL, or the name of a type whose products are wrong */
static const char *moe_amx_check(void) {
    static const char *wrong;
    static int done;
    moe_check_memory memory;
    if (!done) wrong = moe_check_types(&memory);
    done = 1;
    return wrong;
}
