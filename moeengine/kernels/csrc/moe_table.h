/* What the compiled kernels of one instruction set offer to the rest of moeengine.
 *
 * isa_<isa>.c fills one `moe_isa`. Everything here is pure computation: no allocation, no I/O, no
 * threads, no errors. Preconditions are checked by the Cython callers.
 *
 * Numbers. Integer sums are exact. Float sums have one fixed order (below), so the result of a
 * matrix product is the same bytes on every instruction set and for every number of rows:
 *   256-weight types: blocks ascending; isum is the exact integer sum_g scale_g * sum_k q_k * y_k and
 *     msum = sum_g min_g * sum_k y_k.
 *     Q4_K, Q5_K, Q6_K, IQ4_XS (MOE_SCALES_FIRST_<type> 1): acc = fma((float)isum, d * yd, acc); types
 *     with a min then acc = fma(-(float)msum, dmin * yd, acc).
 *     The others: sum = (float)isum * d, rounded; types with a min then sum = fma(-(float)msum, dmin,
 *     sum); acc = fma(sum, yd, acc).
 *     (Each is the order of stock's many-row kernel for that type on CPUs with AMX; with rows of one
 *     block, as in small models, it decides ties of later rounding.)
 *   32-weight types, one 32-block at a time (NVFP4: 16): acc = fma((float)isum, d * yd, acc); Q4_1
 *     then does acc = fma(m, s, acc), s the activation block's fp16-rounded sum.
 *   Q5_0 and Q5_1: the same in 8 lanes, lane l with the products of elements 4l .. 4l+3 of every block; then lanes
 *     are added, l and l+4, l+2, l+1. The m * s of Q5_1 have a sum of their own, which is added last.
 *   F32, F16: 16 partial sums, lane k % 16, fma, k ascending; then halves are added: lane i + lane i+8,
 *     then +4, +2, +1. BF16: the same with lane k / 2 % 16, of two neighbours the odd one first, which is what
 *     vdpbf16ps does; where that is used, numbers below 2^-126 count as 0.
 * acc starts at +0. */
#ifndef MOE_TABLE_H
#define MOE_TABLE_H
#include <stddef.h>
#include <stdint.h>

/* Whether isa_amx.c is compiled in: GCC 11 and Clang 12 are the first to know all of its target. */
#if defined(__x86_64__) && (defined(__clang__) ? __clang_major__ >= 12 : __GNUC__ >= 11)
#define MOE_HAS_AMX 1
#else
#define MOE_HAS_AMX 0
#endif
/* Whether attention_fp16.c is: arithmetic of half floats, which CPUs with tiles have. */
#if MOE_HAS_AMX && (defined(__clang__) ? __clang_major__ >= 14 : __GNUC__ >= 12)
#define MOE_HAS_FP16 1
#else
#define MOE_HAS_FP16 0
#endif

/* How an activation row is laid out for a product. The layout inside a format belongs to the
 * instruction set; callers only know the size of a row (moe_x_row_bytes). */
enum moe_x_format {
    MOE_X_F32,
    MOE_X_F16,
    MOE_X_BF16,
    MOE_X_Q8_0,
    MOE_X_Q8_K,
    MOE_X_Q8_K_A, /* as MOE_X_Q8_K, in other orders that an instruction set's kernels of some types want; */
    MOE_X_Q8_K_B, /* moe_type.x_format says which, not quants/list.h */
    MOE_X_COUNT
};

typedef struct moe_x {
    size_t block; /* elements a block */
    size_t bytes; /* bytes a block */
    /* x float32[n] -> y n/block blocks; y 64-byte aligned. n is a multiple of block. */
    void (*quantize_row)(size_t n, const float *x, void *y);
} moe_x;

/* One product: out[t*out_stride + r] = sum_k w[r][k] * x[t][k], r < n_rows, t < n_x. */
typedef struct moe_mul {
    size_t n_in;       /* weights a row; a multiple of the type's block */
    size_t n_rows;     /* rows of w, any count >= 1 */
    const void *w;     /* n_rows rows, w_stride bytes apart, no alignment; nothing past them is read */
    size_t w_stride;
    size_t n_x;        /* activation rows, any count >= 1 */
    const void *x;     /* n_x rows in the type's x_format, x_stride bytes apart, 64-byte aligned */
    size_t x_stride;
    float *out;
    size_t out_stride; /* floats between two activation rows of out */
    const void *next;  /* NULL, or the first of the rows of weights that this thread most likely multiplies next, in the same
                        * shape and type: they are fetched towards the end, never read */
} moe_mul;

typedef struct moe_type {
    const char *name; /* GGUF spelling; NULL = no such type */
    int32_t id;       /* ggml type id */
    int32_t x_format;
    size_t block;
    size_t bytes;
    /* w n/block blocks -> y float32[n], the value gguf.quants gives */
    void (*dequantize_row)(size_t n, const void *w, float *y);
    void (*mul_mat)(const moe_mul *m);
} moe_type;

#define MOE_TYPE_MAX 48

/* Attention of some query rows (token x head pairs) that share one KV head.
 * Row i (0 <= i < n_q) sees the keys kv_begin[i] .. n_kv[i]-1.
 *   score = fma-sum(q, k) * scale, d ascending ; with softcap c > 0: c * tanh(score / c)
 *   softmax over the seen keys and the sink ; out = sum p * v
 *
 * K lies transposed in tiles of MOE_KV_TILE positions counted from 0, so that a vector holds the
 * same element of neighbouring keys. Element d of the key at position p is
 *   k[p / MOE_KV_TILE * k_tile_stride + d * MOE_KV_TILE + p % MOE_KV_TILE]
 * (moe_isa.k_store writes this). The cache holds whole tiles: what lies after the last key of a tile
 * is loaded but takes no part. V is one row a position, head_dim_v elements after the one before and in tiles of as many
 * positions; only rows of seen keys are read. Where v is NULL a value is the first head_dim_v elements of its key.
 *
 * Sums run over the tiles of one segment of MOE_KV_SEGMENT positions (online softmax), then over the
 * segments in ascending order. So a row gives the same bytes whichever rows are computed with it, and
 * whether one call does all segments or many calls do one each. */
#define MOE_KV_TILE 64
#define MOE_KV_SEGMENT 512
#define MOE_F16_POSITIONS 128 /* at most MOE_KV_SEGMENT */
typedef struct moe_attn {
    size_t head_dim_k, head_dim_v; /* any size >= 1 */
    size_t n_q;              /* query rows, any count >= 1; many at once are much faster a row */
    const float *const *q;   /* n_q rows of head_dim_k floats, rope applied */
    float *const *out;       /* n_q rows of head_dim_v floats; may be the same rows as q */
    const int32_t *n_kv;     /* n_q counts >= 1 */
    const int32_t *kv_begin; /* NULL: all 0; else n_q positions in 0 .. n_kv[i]-1 (sliding window) */
    const uint16_t *k;       /* F16 tiles as above */
    size_t k_tile_stride;    /* elements between two tiles, at least head_dim_k * MOE_KV_TILE */
    const uint16_t *v;       /* F16 rows of head_dim_v, or NULL: head_dim_v is at most head_dim_k */
    size_t v_tile_stride;    /* elements between two tiles, at least head_dim_v * MOE_KV_TILE */
    size_t n_tiles;          /* tile i lies in the place of tile i % n_tiles; 0: in its own */
    float scale;
    float softcap;           /* 0: none */
    const float *sink;       /* NULL, or n_q logits that take part in the softmax without a value */
    void *scratch;           /* moe_isa.attn_scratch_bytes(...), 64-byte aligned, any content */
} moe_attn;

/* Floats of one row of a partial result: maximum, sum, 14 unused, head_dim_v weighted values, padded
 * to 16. */
static inline size_t moe_attn_partial_floats(size_t head_dim_v) {
    return 16 + ((head_dim_v + 15) & ~(size_t)15);
}

/* Some rows of the state of one head of a gated delta rule, over the tokens of a chunk. For token after token, for
 * each row s with its value v:
 *   s = s * decay, of the token or of the element ; miss = (v - sum(s, k)) * beta ; s = fma(k, miss, s) ; v = sum(s, q) * scale
 * sum: four sums of 16 lanes, that of elements 16 i .. 16 i + 15 is i % 4, fma, i ascending; then 0 + 2 and 1 + 3,
 * both together, and the lanes as for F32 products above. A row sees no other, so any split of rows or tokens gives the
 * same bytes. */
typedef struct moe_delta {
    size_t dim;          /* of a row, a key and a query, >= 1 */
    size_t n_rows;       /* any count */
    size_t n_tokens;     /* any count */
    float *state;        /* n_rows rows of dim, one after the other; updated */
    const float *q;      /* n_tokens rows of dim, one after the other */
    const float *k;
    float *v;            /* n_rows values a token, v_stride floats apart; replaced by the results */
    size_t v_stride;
    const float *decay;  /* n_tokens factors; by_element: n_tokens rows of dim */
    int by_element;
    const float *beta;   /* n_tokens shares of the miss that are learnt */
    float scale;
} moe_delta;

/* Some rows of the state of one head of a Mamba-2 layer, over the tokens of a chunk. For token after token, for each row s
 * with its value x:
 *   s = fma(s, decay, b * (x * dt)) ; x = sum(s, c) + x * skip
 * sum as in moe_delta. A row sees no other, so any split of rows or tokens gives the same bytes. */
typedef struct moe_ssm {
    size_t dim;          /* of a row, a b and a c, >= 1 */
    size_t n_rows;       /* any count */
    size_t n_tokens;     /* any count */
    float *state;        /* n_rows rows of dim, one after the other; updated */
    const float *b;      /* n_tokens rows of dim, one after the other */
    const float *c;
    float *x;            /* n_rows values a token, x_stride floats apart; replaced by the results */
    size_t x_stride;
    const float *decay;  /* n_tokens factors */
    const float *dt;     /* n_tokens time steps */
    float skip;
} moe_ssm;

/* Some channels of a Mamba-1 layer over the tokens of a chunk. For token after token, for each channel i with its value x:
 *   s[n][i] = fma(s[n][i], exp(dt[i] * a[n][i]), b[n] * (x * dt[i])) ; x = sum(s[n][i], c[n]) + x * skip[i]
 * sum: fma from 0, n ascending. A channel sees no other, so any split of channels or tokens gives the same bytes. */
typedef struct moe_selective {
    size_t dim;        /* values of a channel's state, of a b and of a c, >= 1 */
    size_t n_channels; /* any count */
    size_t n_tokens;   /* any count */
    float *state;      /* dim rows of n_channels, row_stride floats apart; updated */
    const float *a;    /* the same */
    size_t row_stride;
    const float *b;    /* n_tokens rows of dim, b_stride floats apart */
    const float *c;
    size_t b_stride;
    float *x;          /* n_channels values a token, x_stride floats apart; replaced by the results */
    const float *dt;   /* n_channels time steps a token, x_stride floats apart */
    size_t x_stride;
    const float *skip; /* n_channels */
} moe_selective;

/* Rows that are added to others: for k < n_rows, in this order, each times its weight, with p = pair[k]
 *   y[p / n_used][i] = fma(weight[p], x[k][i], y[p / n_used][i])        i < n ; strides in floats */
typedef struct moe_weighted {
    size_t n, n_rows;
    const int32_t *pair;
    int32_t n_used;
    const float *weight, *x;
    size_t x_stride;
    float *y;
    size_t y_stride;
} moe_weighted;

typedef struct moe_isa {
    const char *name;
    const char *features; /* comma separated names that cpu.c knows; all must be present */
    int for_tests;        /* only ever chosen by name, without a check */
    /* NULL, or a comparison with products known to be right: returns NULL, or the name of a type that fails */
    const char *(*check)(void);
    moe_type types[MOE_TYPE_MAX]; /* index: ggml type id */
    moe_x x[MOE_X_COUNT];

    /* y = x / rms(x) * w ; w may be NULL. y may be x. the mean of squares is summed in double. */
    void (*rms_norm)(size_t n, const float *x, const float *w, float eps, float *y);
    /* rms_norm of x - mean(x), whose sum is double. y may be x. */
    void (*layer_norm)(size_t n, const float *x, const float *w, float eps, float *y);
    /* y = a + b ; y may be a or b */
    void (*add)(size_t n, const float *a, const float *b, float *y);
    /* y = a * b, value by value ; y may be a or b */
    void (*mul)(size_t n, const float *a, const float *b, float *y);
    /* y = a * x */
    void (*scale)(size_t n, float a, const float *x, float *y);
    /* 1 where every x is finite, else 0 */
    int (*add_weighted)(const moe_weighted *a);
    /* y = silu(gate) * up ; y may be gate or up */
    void (*silu_mul)(size_t n, const float *gate, const float *up, float *y);
    /* y = max(gate, 0) * up ; NaN stays NaN ; y may be gate or up */
    void (*relu_mul)(size_t n, const float *gate, const float *up, float *y);
    /* y = gelu_tanh(gate) * up ; gate and gelu rounded to F16 for gates within -10 .. 10. y may be gate or up */
    void (*gelu_mul)(size_t n, const float *gate, const float *up, float *y);
    /* y = min(silu(gate), bound) * (up within -bound .. bound) ; y may be gate or up */
    void (*silu_bounded)(size_t n, const float *gate, const float *up, float bound, float *y);
    /* y = cap * tanh(x / cap), within 2e-7 of cap ; y may be x */
    void (*softcap)(size_t n, float cap, const float *x, float *y);
    /* y = g * sigmoid(1.702 g) * (u + 1) of g = min(gate, 7), u = up within -7 .. 7 ; y may be gate or up */
    void (*swiglu_oai)(size_t n, const float *gate, const float *up, float *y);
    /* y = silu(min(gate, bound)) * (up within -bound .. bound) ; y may be gate or up */
    void (*swiglu_clamp)(size_t n, const float *gate, const float *up, float bound, float *y);
    /* y[c] = gate[c] * sum of x[i][c] * w[i * w_stride + c], summed as in conv_silu. y may be gate. */
    void (*conv_mul)(size_t n, size_t n_taps, const float *const *x, const float *w, size_t w_stride, const float *gate,
                     float *y);
    /* y = x / (1 + e^-gate) ; y may be x or gate */
    void (*sigmoid_mul)(size_t n, const float *gate, const float *x, float *y);
    /* y[c] = silu(sum of x[i][c] * w[i * w_stride + c] + bias[c]), fma from 0, i ascending: a causal convolution a channel,
     * x[0] the oldest of n_taps rows. bias may be NULL. y is none of the rows. */
    void (*conv_silu)(size_t n, size_t n_taps, const float *const *x, const float *w, size_t w_stride, const float *bias,
                      float *y);
    /* The whole of moe_delta. */
    void (*delta_rule)(const moe_delta *d);
    /* The whole of moe_ssm. */
    void (*ssm_scan)(const moe_ssm *m);
    /* The whole of moe_selective. */
    void (*selective_scan)(const moe_selective *m);
    /* rotate n_rot of head_dim values in place; cs = n_rot/2 pairs (cos, sin), already scaled.
     * neox: pair (i, i + n_rot/2); else pair (2i, 2i+1). */
    void (*rope)(size_t n_rot, const float *cs, int neox, float *x);
    /* x float32[n] -> F16, round to nearest even */
    void (*f32_to_f16)(size_t n, const float *x, uint16_t *y);
    void (*f16_to_f32)(size_t n, const uint16_t *x, float *y);
    /* in place softmax of n values; returns 0 where the maximum is NaN or infinite */
    int (*softmax)(size_t n, float *x);
    /* K float32 rows of n_tokens positions from pos on, k_row_stride floats apart -> F16 tiles of one KV
     * head, laid out as moe_attn.k. Writes these positions only. */
    void (*k_store)(size_t n_tokens, size_t head_dim_k, size_t pos, const float *k, size_t k_row_stride,
                    uint16_t *tiles, size_t k_tile_stride);
    /* The whole of moe_attn. */
    void (*attention)(const moe_attn *a);
    /* The same for queries at positions below MOE_F16_POSITIONS (any n_kv), summed with ggml's F16 rounding (attention_f16.h).
     * softcap is not used. */
    void (*attention_f16)(const moe_attn *a);
    /* Only positions segment * MOE_KV_SEGMENT .. +MOE_KV_SEGMENT-1: n_q rows of
     * moe_attn_partial_floats(head_dim_v) floats, 64-byte aligned. a->out and a->sink are not used. */
    void (*attention_segment)(const moe_attn *a, size_t segment, float *partial);
    /* out from the partial results of segments 0 .. n_segments-1 (segment s at partial + s *
     * segment_stride floats; those after a row's n_kv may be left out by a smaller n_segments). The
     * same bytes as `attention`. Uses head_dim_v, n_q, out and sink of a. Segment 0 is overwritten. */
    void (*attention_merge)(const moe_attn *a, size_t n_segments, float *partial, size_t segment_stride);
    /* the same size serves attention and attention_segment */
    size_t (*attn_scratch_bytes)(size_t n_q, size_t head_dim_k, size_t head_dim_v);
} moe_isa;

/* GELU of F16 numbers as F16: those of 0 .. 10 in the order of their bits, then those of -0 .. -10 */
enum { MOE_GELU_HALF = 0x4901 };
extern const uint16_t moe_gelu_values[2 * MOE_GELU_HALF];

/* Brings a line near that will be written: another core may have a copy, and to take it away then would take as long again. */
static inline void moe_fetch_for_writing(const void *p) {
#ifdef __x86_64__
    __asm__ volatile("prefetchw %0" : : "m"(*(const char *)p)); /* compilers know it only with a flag; a no-op where missing */
#else
    __builtin_prefetch(p, 1);
#endif
}

static inline size_t moe_x_row_bytes(const moe_isa *isa, int format, size_t n) {
    size_t b = (n + isa->x[format].block - 1) / isa->x[format].block * isa->x[format].bytes;
    return (b + 63) & ~(size_t)63;
}

/* cpu.c: instruction sets compiled in, best first; and what this CPU and OS allow. */
extern const moe_isa *const moe_isa_list[]; /* ends with NULL */
/* NULL if this CPU and system can run `isa` and its check passes; else why not, until the next call. Asks for AMX
 * permission. Not for several threads at once. */
const char *moe_isa_problem(const moe_isa *isa);

#endif
