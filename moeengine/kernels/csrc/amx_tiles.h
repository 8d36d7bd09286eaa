/* Tile registers: the few instructions that amx_product.h is written with, in two bodies.
 *
 * MOE_AMX_EMULATED 0: AMX-TILE and AMX-INT8 (compile region of isa_amx.c). Written as assembly, because compilers'
 * headers leave out what the instructions read: GCC 12's _tile_loadconfig names 8 of 64 bytes, its _tile_loadd none, so
 * stores before them may be dropped or delayed.
 * MOE_AMX_EMULATED 1: what Intel's manual says the instructions do (SDM volume 1 chapter 18, volume 2: LDTILECFG,
 * STTILECFG, TILERELEASE, TILEZERO, TILELOADD, TILESTORED, TDPB*D), for machines without them. Where the
 * processor would raise #GP or #UD, this traps.
 *
 * A tile number is a constant 0..7. Configuration and tiles belong to a thread. */
#ifndef MOE_AMX_TILES_H
#define MOE_AMX_TILES_H
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "simd/base.h"

typedef struct moe_tile_config {
    uint8_t palette; /* 1; 0: tiles are released */
    uint8_t start_row;
    uint8_t reserved[14];
    uint16_t colsb[16]; /* bytes a row, 0..64; of tiles 8..15, which palette 1 does not have, 0 */
    uint8_t rows[16];   /* 0..16 */
} __attribute__((aligned(64))) moe_tile_config;
_Static_assert(sizeof(moe_tile_config) == 64, "what LDTILECFG reads");

#if !MOE_AMX_EMULATED

MOE_INLINE void tile_config_load(const moe_tile_config *c) { __asm__ volatile("ldtilecfg %0" ::"m"(*c)); }
MOE_INLINE void tile_config_store(moe_tile_config *c) { __asm__ volatile("sttilecfg %0" : "=m"(*c)); }
MOE_INLINE void tile_release(void) { __asm__ volatile("tilerelease"); }
MOE_INLINE void tile_zero(const int t) { __asm__ volatile("tilezero %%tmm%c0" ::"i"(t)); }
MOE_INLINE void tile_load(const int t, const void *p, size_t stride) {
    __asm__ volatile("tileloadd (%1,%2,1), %%tmm%c0" ::"i"(t), "r"(p), "r"(stride) : "memory");
}
MOE_INLINE void tile_store(const int t, void *p, size_t stride) {
    __asm__ volatile("tilestored %%tmm%c0, (%1,%2,1)" ::"i"(t), "r"(p), "r"(stride) : "memory");
}
/* c += a (int8) * b (int8) */
MOE_INLINE void tile_dp_ssd(const int c, const int a, const int b) {
    __asm__ volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(c), "i"(a), "i"(b));
}
/* c += a (int8) * b (uint8) */
MOE_INLINE void tile_dp_sud(const int c, const int a, const int b) {
    __asm__ volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(c), "i"(a), "i"(b));
}

#else

static _Thread_local struct moe_tile_state {
    moe_tile_config config;
    uint8_t row[8][16][64];
} moe_tiles;

MOE_INLINE void tile_require(int condition) {
    if (!condition) __builtin_trap();
}

MOE_INLINE void tile_release(void) { memset(&moe_tiles, 0, sizeof moe_tiles); }

__attribute__((unused)) static void tile_config_load(const moe_tile_config *c) {
    static const uint8_t none[14];
    tile_require(c->palette <= 1);
    if (c->palette == 0) {
        tile_release();
        return;
    }
    tile_require(memcmp(c->reserved, none, sizeof none) == 0 && c->start_row == 0);
    for (int t = 0; t < 16; t++) {
        tile_require(c->colsb[t] <= 64 && c->rows[t] <= 16 && (c->colsb[t] == 0) == (c->rows[t] == 0));
        tile_require(t < 8 || c->rows[t] == 0);
    }
    tile_release();
    moe_tiles.config = *c;
}

MOE_INLINE void tile_config_store(moe_tile_config *c) { *c = moe_tiles.config; }

/* rows of tile t; it must be configured */
MOE_INLINE int tile_rows(const int t) {
    tile_require(moe_tiles.config.palette == 1 && moe_tiles.config.rows[t] > 0);
    return moe_tiles.config.rows[t];
}

MOE_INLINE void tile_zero(const int t) {
    tile_rows(t);
    memset(moe_tiles.row[t], 0, sizeof moe_tiles.row[t]);
}

/* what lies outside the configured rows and columns becomes zero */
__attribute__((unused)) static void tile_load(const int t, const void *p, size_t stride) {
    const int rows = tile_rows(t);
    memset(moe_tiles.row[t], 0, sizeof moe_tiles.row[t]);
    for (int m = 0; m < rows; m++)
        memcpy(moe_tiles.row[t][m], (const uint8_t *)p + (size_t)m * stride, moe_tiles.config.colsb[t]);
}

__attribute__((unused)) static void tile_store(const int t, void *p, size_t stride) {
    const int rows = tile_rows(t);
    for (int m = 0; m < rows; m++)
        memcpy((uint8_t *)p + (size_t)m * stride, moe_tiles.row[t][m], moe_tiles.config.colsb[t]);
}

__attribute__((unused)) static void tile_dp(const int c, const int a, const int b, const int b_signed) {
    const int rows = tile_rows(c), n_k = moe_tiles.config.colsb[a] / 4, n_n = moe_tiles.config.colsb[c] / 4;
    tile_require(a != b && a != c && b != c);
    tile_require(tile_rows(a) == rows && tile_rows(b) == n_k);
    tile_require(moe_tiles.config.colsb[b] == moe_tiles.config.colsb[c]);
    tile_require(moe_tiles.config.colsb[a] % 4 == 0 && moe_tiles.config.colsb[c] % 4 == 0);
    for (int m = 0; m < rows; m++) {
        int32_t sum[16];
        memcpy(sum, moe_tiles.row[c][m], sizeof sum);
        for (int k = 0; k < n_k; k++) {
            const uint8_t *x = moe_tiles.row[a][m] + 4 * k;
            for (int n = 0; n < n_n; n++) {
                const uint8_t *y = moe_tiles.row[b][k] + 4 * n;
                int32_t s = 0;
                for (int i = 0; i < 4; i++) s += (int8_t)x[i] * (b_signed ? (int8_t)y[i] : y[i]);
                sum[n] = (int32_t)((uint32_t)sum[n] + (uint32_t)s); /* sums wrap */
            }
        }
        memset(sum + n_n, 0, (size_t)(16 - n_n) * sizeof *sum);
        memcpy(moe_tiles.row[c][m], sum, sizeof sum);
    }
    for (int m = rows; m < 16; m++) memset(moe_tiles.row[c][m], 0, 64);
}
MOE_INLINE void tile_dp_ssd(const int c, const int a, const int b) { tile_dp(c, a, b, 1); }
MOE_INLINE void tile_dp_sud(const int c, const int a, const int b) { tile_dp(c, a, b, 0); }

#endif
#endif
