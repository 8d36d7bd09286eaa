/* IQ2_XXS on AVX2. In a panel weights are q + 43, 0 .. 86; 43 times the block sums is taken away. */

/* grid values and signs (1 or -1) of sub-block g */
MOE_INLINE void avx2_grid_iq2_xxs(const block_IQ2_XXS *b, int g, __m256i *grid, __m256i *signs, int16_t *sc) {
    const uint8_t *i = b->qs + 8 * g;
    uint32_t aux = moe_load_u32(i + 4);
    *grid = avx2_rows8(moe_grid_iq2_xxs[i[0]], moe_grid_iq2_xxs[i[1]], moe_grid_iq2_xxs[i[2]], moe_grid_iq2_xxs[i[3]]);
    *signs = avx2_rows8(moe_signs7_bytes[aux & 127], moe_signs7_bytes[aux >> 7 & 127],
                        moe_signs7_bytes[aux >> 14 & 127], moe_signs7_bytes[aux >> 21 & 127]);
    *sc = (int16_t)(2 * (aux >> 28) + 1);
}

MOE_INLINE avx2_part dot_avx2_IQ2_XXS(const void *block, const block_x_q8_K *x) {
    const block_IQ2_XXS *b = block;
    __m256i sum = _mm256_setzero_si256();
    for (int g = 0; g < 8; g++) {
        __m256i grid, signs;
        int16_t sc;
        avx2_grid_iq2_xxs(b, g, &grid, &signs, &sc);
        __m256i p = _mm256_maddubs_epi16(grid, _mm256_sign_epi8(avx2_load(x->q + 32 * g), signs));
        sum = AVX2_SCALED(sum, p, _mm256_set1_epi16(sc));
    }
    return (avx2_part){sum, _mm256_setzero_si256(), moe_load_half(&b->d) * 0.125f, 0.0f};
}

MOE_INLINE void panel_avx2_IQ2_XXS(const uint8_t *const *row, avx2_panel *p) {
    uint8_t q[8][256];
    const uint8_t *q_row[8];
    int16_t sc[8][8][2], sum[4][8][2];
    for (size_t r = 0; r < 8; r++) {
        q_row[r] = q[r];
        for (int g = 0; g < 8; g++) {
            __m256i grid, signs;
            avx2_grid_iq2_xxs((const block_IQ2_XXS *)row[r], g, &grid, &signs, &sc[g][r][0]);
            __m256i v = _mm256_add_epi8(_mm256_sign_epi8(grid, signs), _mm256_set1_epi8(43));
            _mm256_storeu_si256((__m256i *)(q[r] + 32 * g), v);
            sc[g][r][1] = sc[g][r][0];
            sum[g / 2][r][g % 2] = (int16_t)(-43 * sc[g][r][0]);
        }
    }
    for (int j = 0; j < 64; j += 4) avx2_columns(q_row, 4 * j, p->u + j);
    memcpy(p->sc, sc, sizeof sc);
    memcpy(p->sum, sum, sizeof sum);
    p->d = _mm256_mul_ps(avx2_halves(row, offsetof(block_IQ2_XXS, d)), _mm256_set1_ps(0.125f));
}

AVX2_MUL_256(IQ2_XXS, 32, 1, 1)
