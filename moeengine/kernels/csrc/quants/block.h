/* What all weight types share: the unpacked form of a block, and how a type is declared.
 *
 * A type's header gives its byte map, its packed struct and one `unpack` function that turns a
 * block into integers. Dequantizing and multiplying are derived from that (../mul_generic.h).
 * simd/<isa>.h is included before: float and half conversions come from there.
 *
 * MOE_HAS_MIN_<type>        1: weights have a min
 * MOE_SCALES_FIRST_<type>   256-weight types: 1: d and the activation's scale are multiplied first
 *                           (moe_table.h, order of float sums) */
#ifndef MOE_QUANTS_BLOCK_H
#define MOE_QUANTS_BLOCK_H
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "../moe_table.h"
#include "list.h"

#define MOE_PACKED __attribute__((packed))

/* 256 weights as integers: w[i] = d * sc[i/16] * q[i] - dmin * mn[i/16].
 * |sc * q| <= 4096, so a product with an int8 activation summed over 256 fits an int32. */
typedef struct moe_block256 {
    int8_t q[256];
    int16_t sc[16];
    int16_t mn[16]; /* read only for types with a min */
    float d, dmin;
} moe_block256;

/* One group (32 weights; NVFP4: 16) of a type with small blocks: w[i] = d * q[i] + m. */
typedef struct moe_group {
    int8_t q[32];
    float d, m;
} moe_group;

MOE_INLINE uint16_t moe_load_u16(const void *p) {
    uint16_t v;
    memcpy(&v, p, 2);
    return v;
}
MOE_INLINE uint32_t moe_load_u32(const void *p) {
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}

/* a half float at any address */
MOE_INLINE float moe_load_half(const void *p) { return f32_from_f16(moe_load_u16(p)); }

#endif
