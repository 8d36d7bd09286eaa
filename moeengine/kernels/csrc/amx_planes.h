/* AMX: what tiles multiply: a 256-block of 16 rows as planes of bytes, and panels of the types with small blocks.
 *
 * A step of panel_avx512.h (4 weights of 16 rows) is a row of a tile B, 64 weights are a whole tile, and activation
 * rows are a tile A as they lie. So nothing is transposed or repacked for tiles, and a row of the sums C has the
 * weight rows as lanes, as everywhere in AVX-512 code. One difference: a tile sums over all groups of a block, so
 * the scales must be in the weights. Weight times scale is at most 4096 (quants/block.h), so it is two bytes:
 * planes of high and low bytes, two products, and the exact sum is put together afterwards. */
#ifndef MOE_AMX_PLANES_H
#define MOE_AMX_PLANES_H
#include "quants/all.h"

/* How weights times scales become planes. sum = (high << shift) + low, or the one plane's; a plane's bytes times
 * activations are summed by tiles exactly. u = weight + offset of the panel's kind, s = scale. */
enum moe_split {
    MOE_SPLIT_NONE, /* one plane, the steps as they are: u. scales are 1 or were folded in; unsigned */
    MOE_SPLIT_WHOLE, /* one plane: (u - offset) * s + 127, for products of -127..128; unsigned */
    MOE_SPLIT_SCALE, /* u * (s >> 3) and u * (s & 7), both unsigned: amx_q4_K.h */
    MOE_SPLIT_BYTES, /* high byte (signed) and low byte (unsigned) of (u - offset) * s; s an int8 */
    MOE_SPLIT_BYTES_POSITIVE, /* the same where s is not negative, which is cheaper */
    MOE_SPLIT_32, /* 32 * high + low, both signed, out of tables: amx_iq2_xxs.h */
};

typedef struct moe_planes {
    uint8_t step[2][64][64]; /* high or the only one; low */
} __attribute__((aligned(64))) moe_planes;

MOE_INLINE int moe_two_planes(const enum moe_split split) { return split >= MOE_SPLIT_SCALE; }
MOE_INLINE int moe_high_signed(const enum moe_split split) { return split >= MOE_SPLIT_BYTES; }
MOE_INLINE int moe_low_signed(const enum moe_split split) { return split == MOE_SPLIT_32; }
/* sum = (high << shift) + low */
MOE_INLINE int moe_high_shift(const enum moe_split split) {
    return split == MOE_SPLIT_SCALE ? 3 : split == MOE_SPLIT_32 ? 5 : 8;
}

/* The types that go through tiles:  id, name, kind of the panel (mul_avx512.h), split */
#define MOE_AMX_LIST_SPLIT(X)                                   \
    X(10, Q2_K, folded_min16, MOE_SPLIT_NONE)                   \
    X(11, Q3_K, offset4, MOE_SPLIT_WHOLE)                       \
    X(14, Q6_K, signed16, MOE_SPLIT_BYTES)                      \
    X(17, IQ2_XS, signed16_planes, MOE_SPLIT_BYTES_POSITIVE)    \
    X(18, IQ3_XXS, signed8_planes, MOE_SPLIT_BYTES_POSITIVE)    \
    X(19, IQ1_S, folded_whole_min8, MOE_SPLIT_NONE)             \
    X(21, IQ3_S, signed8_planes, MOE_SPLIT_BYTES_POSITIVE)      \
    X(22, IQ2_S, signed16_planes, MOE_SPLIT_BYTES_POSITIVE)     \
    X(23, IQ4_XS, signed8, MOE_SPLIT_BYTES)                     \
    X(29, IQ1_M, offset9, MOE_SPLIT_BYTES_POSITIVE)             \
    X(34, TQ1_0, ternary,  MOE_SPLIT_NONE)                      \
    X(35, TQ2_0, ternary,  MOE_SPLIT_NONE)
#define MOE_AMX_LIST_OWN(X) /* planes are not made from steps */ \
    X(12, Q4_K, min8, MOE_SPLIT_SCALE)                          \
    X(13, Q5_K, min8, MOE_SPLIT_SCALE)                          \
    X(16, IQ2_XXS, signed8_planes, MOE_SPLIT_32)
#define MOE_AMX_LIST(X) MOE_AMX_LIST_SPLIT(X) MOE_AMX_LIST_OWN(X)

/* amx_unpack.c: 16 rows -> panel and, where it is split, planes. The same code for tiles and for their emulation. */
typedef void moe_amx_unpack(const moe_rows *rows, moe_panel *panel, moe_planes *planes);
#define MOE_AMX_DECLARE(id, NAME, KIND, SPLIT) moe_amx_unpack moe_amx_unpack_##NAME;
MOE_AMX_LIST(MOE_AMX_DECLARE)

/* Types with small blocks: a group (32 weights; NVFP4: 16) has a float scale of its own, so it is a tile of its own and
 * its weights are multiplied as they are, as int8.  id, name, kind of the panel */
#define MOE_AMX_LIST_32(X)      \
    X(2, Q4_0, offset8_32)      \
    X(3, Q4_1, min_32)          \
    X(8, Q8_0, signed_32)       \
    X(20, IQ4_NL, signed_32)    \
    X(39, MXFP4, offset16_32)   \
    X(40, NVFP4, offset16_16)

/* 16 rows of one block -> groups `group` and on of the panel, steps signed */
typedef void moe_amx_unpack_32(const moe_rows *rows, int group, moe_panel32 *panel);
#define MOE_AMX_DECLARE_32(id, NAME, KIND) moe_amx_unpack_32 moe_amx_unpack_##NAME;
MOE_AMX_LIST_32(MOE_AMX_DECLARE_32)

#endif
