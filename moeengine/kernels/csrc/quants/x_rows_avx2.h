/* Activation rows on AVX2: the layouts and numbers of x_rows.h, bit for bit. */

MOE_INLINE __m256i avx2_abs_bits(const float *x) {
    __m256i bits = _mm256_castps_si256(_mm256_loadu_ps(x));
    return _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff));
}

MOE_INLINE uint32_t avx2_max_lane(__m256i v) { /* of lanes that are not negative */
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
    return (uint32_t)_mm_cvtsi128_si32(_mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1)));
}

/* 32 values times scale, rounded to the nearest even: int8 */
MOE_INLINE __m256i avx2_round32(const float *x, float scale) {
    __m256 f = _mm256_set1_ps(scale);
    __m256i a = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), f));
    __m256i b = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8), f));
    __m256i c = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 16), f));
    __m256i d = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 24), f));
    __m256i q = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
    return _mm256_permutevar8x32_epi32(q, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

/* 8 sums of 4 */
MOE_INLINE __m256i avx2_sums_of_4(__m256i q) {
    return _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), q), _mm256_set1_epi16(1));
}

static void quantize_row_avx2_q8_K(size_t n, const float *x, void *y) {
    block_x_q8_K *out = y;
    for (size_t b = 0; b < n / 256; b++, x += 256, out++) {
        __m256i most = avx2_abs_bits(x);
        for (size_t i = 8; i < 256; i += 8) most = _mm256_max_epi32(most, avx2_abs_bits(x + i));
        uint32_t top = avx2_max_lane(most);
        float iscale = INFINITY;
        if (top && top < 0x7f800000) { /* the sign of the first value of that size counts */
            size_t first = 0;
            int hit = 0;
            for (;; first += 8) {
                __m256i equal =
                    _mm256_cmpeq_epi32(avx2_abs_bits(x + first), _mm256_set1_epi32((int32_t)top));
                hit = _mm256_movemask_ps(_mm256_castsi256_ps(equal));
                if (hit) break;
            }
            iscale = -127.0f / x[first + (size_t)__builtin_ctz((unsigned)hit)];
        }
        if (!(iscale <= FLT_MAX && iscale >= -FLT_MAX)) {
            memset(out, 0, sizeof *out);
            if (top >= 0x7f800000) out->d = NAN;
            continue;
        }
        out->d = 1.0f / iscale;
        memset(out->unused, 0, sizeof out->unused);
        for (size_t h = 0; h < 2; h++) {
            __m256i s[4];
            for (size_t i = 0; i < 4; i++) {
                __m256i q = avx2_round32(x + 128 * h + 32 * i, iscale);
                _mm256_storeu_si256((__m256i *)(out->q + 128 * h + 32 * i), q);
                s[i] = avx2_sums_of_4(q);
            }
            /* low lane: sums of the first 16 of each 32, high lane: of the second */
            __m256i sums =
                _mm256_hadd_epi32(_mm256_hadd_epi32(s[0], s[1]), _mm256_hadd_epi32(s[2], s[3]));
            __m128i low = _mm256_castsi256_si128(sums), high = _mm256_extracti128_si256(sums, 1);
            __m128i sum16 =
                _mm_packs_epi32(_mm_unpacklo_epi32(low, high), _mm_unpackhi_epi32(low, high));
            __m128i sum32 = _mm_add_epi32(low, high);
            _mm_storeu_si128((__m128i *)(out->sum16 + 8 * h), sum16);
            _mm_storel_epi64((__m128i *)(out->sum32 + 4 * h), _mm_packs_epi32(sum32, sum32));
        }
    }
}

static void quantize_row_avx2_q8_0(size_t n, const float *x, void *y) {
    int8_t *q = y;
    float *d = (float *)(q + n), *s = d + n / 32;
    int32_t *sums = (int32_t *)(s + n / 32);
    for (size_t b = 0; b < n / 32; b++, x += 32, q += 32) {
        __m256i most = _mm256_max_epi32(avx2_abs_bits(x), avx2_abs_bits(x + 8));
        most =
            _mm256_max_epi32(most, _mm256_max_epi32(avx2_abs_bits(x + 16), avx2_abs_bits(x + 24)));
        uint32_t top = avx2_max_lane(most);
        float max = top < 0x7f800000 ? f32_from_bits(top) : NAN, inverse = 127.0f / max;
        __m256i v = _mm256_setzero_si256();
        if (inverse <= FLT_MAX) v = avx2_round32(x, inverse);
        _mm256_storeu_si256((__m256i *)q, v);
        __m256i s4 = avx2_sums_of_4(v);
        __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(s4), _mm256_extracti128_si256(s4, 1));
        sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
        sums[b] = _mm_cvtsi128_si32(_mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1)));
        float scale = max / 127.0f;
        d[b] = moe_round_half(scale);
        s[b] = moe_round_half(scale * (float)sums[b]);
    }
}
