/* Attention over one KV head; moe_attn in moe_table.h is the contract. */

static size_t attn_scratch_bytes(size_t n_q, size_t head_dim_k, size_t head_dim_v) {
    return 64 * (n_q + head_dim_k + head_dim_v);
}
static void k_store(size_t n_tokens, size_t head_dim_k, size_t pos, const float *k, size_t k_row_stride,
                    uint16_t *tiles, size_t k_tile_stride) {
    for (size_t t = 0; t < n_tokens; t++) {
        size_t p = pos + t;
        uint16_t *to = tiles + p / MOE_KV_TILE * k_tile_stride + p % MOE_KV_TILE;
        for (size_t d = 0; d < head_dim_k; d++) to[d * MOE_KV_TILE] = f16_from_f32(k[t * k_row_stride + d]);
    }
}
static void attention(const moe_attn *a) { (void)a; }
static void attention_segment(const moe_attn *a, size_t segment, float *partial) {
    (void)a, (void)segment, (void)partial;
}
static void attention_merge(const moe_attn *a, size_t n_segments, const float *partial,
                            size_t segment_stride) {
    (void)a, (void)n_segments, (void)partial, (void)segment_stride;
}
