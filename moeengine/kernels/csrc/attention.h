/* Attention over one KV head; moe_attn in moe_table.h is the contract.
 *
 * Tiles of keys in the outer loop, blocks of query rows in the inner one: K and V pass through the
 * caches once for all rows. A row's state is a row of a partial result: maximum, sum, weighted values. */
#include "attention_block.h"

enum { STATE_MAX = 0, STATE_SUM = 1, STATE_VALUES = 16 };
enum {
    ATTN_CONVERT_ROWS = 4 * ATTN_ROWS, /* from this many rows on a tile is converted to f32 first */
    ATTN_CHUNK_ROWS = 512,             /* rows whose queries and states fit into L2 */
};

static size_t attn_scratch_bytes(size_t n_q, size_t head_dim_k, size_t head_dim_v) {
    size_t state = moe_attn_partial_floats(head_dim_v);
    if (n_q > ATTN_CHUNK_ROWS) n_q = ATTN_CHUNK_ROWS;
    size_t tiles = MOE_KV_TILE * (ATTN_ROWS + head_dim_k + state);
    return sizeof(float) * (tiles + 2 * n_q * state + head_dim_k);
}

/* attn_scratch_bytes, cut up */
typedef struct attn_scratch {
    float *score; /* (ATTN_ROWS, MOE_KV_TILE) */
    float *k;     /* (head_dim_k, MOE_KV_TILE) */
    float *v;     /* (MOE_KV_TILE, head_dim_v padded to 16) */
    float *sum;   /* a state for each row of a chunk: all segments so far */
    float *part;  /* the same: this segment */
    float *q;     /* (head_dim_k) a query as F16 rounds it */
} attn_scratch;

static attn_scratch cut_scratch(const moe_attn *a) {
    attn_scratch w;
    w.score = a->scratch;
    w.k = w.score + ATTN_ROWS * MOE_KV_TILE;
    w.v = w.k + a->head_dim_k * MOE_KV_TILE;
    w.sum = w.v + MOE_KV_TILE * moe_attn_partial_floats(a->head_dim_v);
    size_t n_rows = a->n_q < ATTN_CHUNK_ROWS ? a->n_q : ATTN_CHUNK_ROWS;
    w.part = w.sum + n_rows * moe_attn_partial_floats(a->head_dim_v);
    w.q = w.part + n_rows * moe_attn_partial_floats(a->head_dim_v);
    return w;
}

typedef struct attn_span {
    size_t lo, hi; /* positions inside a tile or segment; empty: both 0 */
} attn_span;

/* The part of the `len` positions from `pos` on that query row i sees. */
MOE_INLINE attn_span seen_keys(const moe_attn *a, size_t i, size_t pos, size_t len) {
    size_t begin = a->kv_begin ? (size_t)a->kv_begin[i] : 0, end = (size_t)a->n_kv[i];
    if (end <= pos || begin >= pos + len || begin >= end) return (attn_span){0, 0};
    attn_span s = {begin > pos ? begin - pos : 0, end - pos < len ? end - pos : len};
    return s;
}

/* Scores of one row to weights exp(score - maximum), state rescaled to the new maximum. */
static void weigh_row(const moe_attn *a, attn_span seen, float *s, float *state) {
    const v16f lowest = v16_set1(-INFINITY), scale = v16_set1(a->scale);
    const size_t first = seen.lo & ~(size_t)15;
    v16f top = lowest, sum = v16_zero();
    for (size_t j = first; j < seen.hi; j += 16) {
        v16f x = v16_mul(v16_load(s + j), scale);
        if (a->softcap > 0) {
            v16f cap = v16_set1(a->softcap);
            x = v16_mul(cap, v16_tanh(v16_div(x, cap)));
        }
        if (j < seen.lo) x = v16_first(seen.lo - j, lowest, x);
        if (j + 16 > seen.hi) x = v16_first(seen.hi - j, x, lowest);
        v16_store(s + j, x);
        top = v16_max(x, top);
    }
    float old = state[STATE_MAX], max = v16_hmax(top), shrink = 1.0f;
    max = max > old ? max : old;
    const v16f base = v16_set1(max == -INFINITY ? 0.0f : max);
    for (size_t j = first; j < seen.hi; j += 16) {
        v16f p = v16_exp(v16_sub(v16_load(s + j), base));
        v16_store(s + j, p);
        sum = v16_add(sum, p);
    }
    if (max > old && old != -INFINITY) {
        shrink = f32_exp(old - max);
        for (size_t i = 0; i < a->head_dim_v; i += 16) {
            float *v = state + STATE_VALUES + i;
            v16_store(v, v16_mul(v16_load(v), v16_set1(shrink)));
        }
    }
    state[STATE_MAX] = max;
    state[STATE_SUM] = f32_madd(state[STATE_SUM], shrink, v16_hsum(sum));
}

/* sum of p * v over the keys from .. to-1 of a tile, for n_rows rows of p and of state */
static void add_values(const moe_attn *a, int n_rows, size_t from, size_t to, const float *p, attn_tile v,
                       float *state) {
    if (from >= to) return;
    values(n_rows, a->head_dim_v, to - from, p + from, rows_from(v, from), state + STATE_VALUES,
           moe_attn_partial_floats(a->head_dim_v));
}

/* Rows i .. i+n_rows-1 against the tile at `pos`. */
static void attend_block(const moe_attn *a, size_t i, int n_rows, size_t pos, attn_tile k, attn_tile v,
                         float *s, float *state) {
    const size_t stride = moe_attn_partial_floats(a->head_dim_v);
    attn_span seen[ATTN_ROWS], any = {MOE_KV_TILE, 0}, all = {0, MOE_KV_TILE};
    for (int r = 0; r < n_rows; r++) {
        attn_span t = seen[r] = seen_keys(a, i + (size_t)r, pos, MOE_KV_TILE);
        if (t.hi > 0 && t.lo < any.lo) any.lo = t.lo;
        if (t.hi > any.hi) any.hi = t.hi;
        if (t.lo > all.lo) all.lo = t.lo;
        if (t.hi < all.hi) all.hi = t.hi;
    }
    if (any.hi == 0) return;
    state += i * stride;
    scores(n_rows, a->head_dim_k, a->q + i, k, any.lo, any.hi, s);
    for (int r = 0; r < n_rows; r++) {
        if (seen[r].hi > 0) weigh_row(a, seen[r], s + r * MOE_KV_TILE, state + (size_t)r * stride);
    }
    /* The keys that all rows see go in one block, the ragged ends before and after row by row. */
    if (all.lo >= all.hi) all.lo = all.hi = MOE_KV_TILE;
    for (int r = 0; r < n_rows; r++) {
        size_t hi = seen[r].hi < all.lo ? seen[r].hi : all.lo;
        add_values(a, 1, seen[r].lo, hi, s + r * MOE_KV_TILE, v, state + (size_t)r * stride);
    }
    add_values(a, n_rows, all.lo, all.hi, s, v, state);
    for (int r = 0; r < n_rows; r++) {
        add_values(a, 1, all.hi, seen[r].hi, s + r * MOE_KV_TILE, v, state + (size_t)r * stride);
    }
}

static void tiles_at(const moe_attn *a, size_t pos, attn_tile *k, attn_tile *v) {
    const size_t i = a->n_tiles ? pos / MOE_KV_TILE % a->n_tiles : pos / MOE_KV_TILE;
    *k = (attn_tile){.f16 = a->k + i * a->k_tile_stride, .f16_stride = MOE_KV_TILE,
                     .ahead = a->k_tile_stride, .f32_stride = MOE_KV_TILE};
    *v = (attn_tile){.f16_stride = a->head_dim_v, .ahead = a->v_tile_stride};
    v->f16 = a->v ? a->v + i * a->v_tile_stride : k->f16; /* those in keys are only read as f32 */
}

/* The 16 x 16 values that lie x_stride floats apart in x go to y as columns; of x the first n_rows are there, the others
 * count as 0. In each round the last bit of a lane's number becomes the first bit of its vector's. */
static void transpose_16(size_t n_rows, const float *x, size_t x_stride, float *y, size_t y_stride) {
    v16f a[16], b[16];
#pragma GCC unroll 16
    for (size_t i = 0; i < 16; i++) a[i] = i < n_rows ? v16_load(x + i * x_stride) : v16_zero();
#define ROUND(from, to)                                   \
    _Pragma("GCC unroll 8") for (int i = 0; i < 8; i++) { \
        to[i] = v16_even(from[2 * i], from[2 * i + 1]);   \
        to[i + 8] = v16_odd(from[2 * i], from[2 * i + 1]); \
    }
    ROUND(a, b)
    ROUND(b, a)
    ROUND(a, b)
    ROUND(b, a)
#undef ROUND
#pragma GCC unroll 16
    for (size_t i = 0; i < 16; i++) v16_store(y + i * y_stride, a[i]);
}

static void convert_tile(const moe_attn *a, size_t n_keys, attn_scratch w, attn_tile *k, attn_tile *v) {
    for (size_t d = 0; d < a->head_dim_k; d++) {
        f16_to_f32(MOE_KV_TILE, k->f16 + d * MOE_KV_TILE, w.k + d * MOE_KV_TILE);
    }
    v->f32_stride = moe_attn_partial_floats(a->head_dim_v) - STATE_VALUES;
    for (size_t d = 0; !a->v && d < a->head_dim_v; d += 16) {
        const size_t n = a->head_dim_v - d < 16 ? a->head_dim_v - d : 16;
        for (size_t j = 0; j < n_keys; j += 16) {
            transpose_16(n, w.k + d * MOE_KV_TILE + j, MOE_KV_TILE, w.v + j * v->f32_stride + d, v->f32_stride);
        }
    }
    for (size_t j = 0; a->v && j < n_keys; j++) {
        f16_to_f32(a->head_dim_v, v->f16 + j * v->f16_stride, w.v + j * v->f32_stride);
    }
    k->f32 = w.k;
    v->f32 = w.v;
}

/* All rows against one segment; state: n_q rows, written whole. */
static void attend_segment(const moe_attn *a, size_t segment, attn_scratch w, float *state) {
    const size_t stride = moe_attn_partial_floats(a->head_dim_v), begin = segment * MOE_KV_SEGMENT;
    memset(state, 0, a->n_q * stride * sizeof *state);
    for (size_t i = 0; i < a->n_q; i++) state[i * stride + STATE_MAX] = -INFINITY;
    for (size_t pos = begin; pos < begin + MOE_KV_SEGMENT; pos += MOE_KV_TILE) {
        size_t n_keys = 0, n_rows = 0;
        for (size_t i = 0; i < a->n_q; i++) {
            attn_span t = seen_keys(a, i, pos, MOE_KV_TILE);
            n_keys = t.hi > n_keys ? t.hi : n_keys;
            n_rows += t.hi > 0;
        }
        if (n_rows == 0) continue;
        attn_tile k, v;
        tiles_at(a, pos, &k, &v);
        if (n_rows >= ATTN_CONVERT_ROWS || !a->v) convert_tile(a, n_keys, w, &k, &v);
        for (size_t i = 0; i < a->n_q; i += ATTN_ROWS) {
            int block = a->n_q - i < ATTN_ROWS ? (int)(a->n_q - i) : ATTN_ROWS;
            attend_block(a, i, block, pos, k, v, w.score, state);
        }
    }
}

/* Adds a later segment of one row to its state; a segment that sees no key changes nothing. */
static void merge_state(size_t dim, const float *part, float *state) {
    float old = state[STATE_MAX], new = part[STATE_MAX], max = new > old ? new : old;
    if (new == -INFINITY && part[STATE_SUM] == 0.0f) return;
    if (old == -INFINITY && state[STATE_SUM] == 0.0f) { /* a copy, so that -0 stays -0 */
        memcpy(state, part, moe_attn_partial_floats(dim) * sizeof *state);
        return;
    }
    float x = old == max ? 1.0f : f32_exp(old - max), y = new == max ? 1.0f : f32_exp(new - max);
    state[STATE_MAX] = max;
    state[STATE_SUM] = f32_madd(state[STATE_SUM], x, part[STATE_SUM] * y);
    for (size_t i = STATE_VALUES; i < STATE_VALUES + dim; i += 16) {
        v16f t = v16_mul(v16_load(part + i), v16_set1(y));
        v16_store(state + i, v16_madd(v16_load(state + i), v16_set1(x), t));
    }
}

/* The sink joins the sum last, in two roundings of the values where it is the maximum, as in ggml. */
static void finish_row(const moe_attn *a, size_t i, float *state) {
    float sum = state[STATE_SUM];
    if (a->sink) {
        const float old = state[STATE_MAX], sink = a->sink[i];
        if (sink > old) {
            const float shrink = f32_exp(old - sink);
            scale_row(a->head_dim_v, shrink, state + STATE_VALUES, state + STATE_VALUES);
            sum = f32_madd(sum, shrink, 1.0f);
        } else {
            sum += f32_exp(sink - old);
        }
    }
    scale_row(a->head_dim_v, 1.0f / sum, state + STATE_VALUES, a->out[i]);
}

static void attend_chunk(const moe_attn *a) {
    const size_t stride = moe_attn_partial_floats(a->head_dim_v);
    const attn_scratch w = cut_scratch(a);
    size_t begin = SIZE_MAX, end = 0;
    for (size_t i = 0; i < a->n_q; i++) {
        attn_span t = seen_keys(a, i, 0, SIZE_MAX / 2);
        begin = t.lo < begin ? t.lo : begin;
        end = t.hi > end ? t.hi : end;
    }
    const size_t first = begin / MOE_KV_SEGMENT;
    attend_segment(a, first, w, w.sum);
    for (size_t segment = first + 1; segment * MOE_KV_SEGMENT < end; segment++) {
        attend_segment(a, segment, w, w.part);
        for (size_t i = 0; i < a->n_q; i++) {
            merge_state(a->head_dim_v, w.part + i * stride, w.sum + i * stride);
        }
    }
    for (size_t i = 0; i < a->n_q; i++) finish_row(a, i, w.sum + i * stride);
}

static void attend_in_chunks(const moe_attn *a, void (*attend)(const moe_attn *)) {
    for (size_t i = 0; i < a->n_q; i += ATTN_CHUNK_ROWS) {
        moe_attn chunk = *a;
        chunk.n_q = a->n_q - i < ATTN_CHUNK_ROWS ? a->n_q - i : ATTN_CHUNK_ROWS;
        chunk.q += i;
        chunk.out += i;
        chunk.n_kv += i;
        if (a->kv_begin) chunk.kv_begin += i;
        if (a->sink) chunk.sink += i;
        attend(&chunk);
    }
}

static void attention(const moe_attn *a) { attend_in_chunks(a, attend_chunk); }

static void attention_segment(const moe_attn *a, size_t segment, float *partial) {
    attend_segment(a, segment, cut_scratch(a), partial);
}

static void attention_merge(const moe_attn *a, size_t n_segments, float *partial, size_t segment_stride) {
    const size_t stride = moe_attn_partial_floats(a->head_dim_v);
    for (size_t i = 0; i < a->n_q; i++) {
        for (size_t s = 1; s < n_segments; s++) {
            merge_state(a->head_dim_v, partial + s * segment_stride + i * stride, partial + i * stride);
        }
        finish_row(a, i, partial + i * stride);
    }
}

static void k_store(size_t n_tokens, size_t head_dim_k, size_t pos, const float *k, size_t k_row_stride,
                    uint16_t *tiles, size_t k_tile_stride) {
    for (size_t t = 0; t < n_tokens; t++, pos++) {
        const float *row = k + t * k_row_stride;
        uint16_t *tile = tiles + pos / MOE_KV_TILE * k_tile_stride + pos % MOE_KV_TILE;
        for (size_t d = 0; d < head_dim_k; d += 16) {
            uint16_t h[16];
            size_t n = head_dim_k - d < 16 ? head_dim_k - d : 16;
            f32_to_f16(n, row + d, h);
            for (size_t i = 0; i < n; i++) tile[(d + i) * MOE_KV_TILE] = h[i];
        }
    }
}
