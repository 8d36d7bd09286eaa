/* The table of isa_amx.c and isa_amx_emulated.c: that of AVX-512, copied when the library is loaded, with its
 * quantized types' products replaced. */
#include "moe_table.h"
#include "quants/all.h"

extern const moe_isa moe_isa_avx512;
int moe_has_fp16(void);                      /* cpu.c */
void moe_attention_fp16(const moe_attn *a);  /* attention_fp16.c */

#include "amx_product.h"
#include "amx_product32.h"

MOE_AMX_LIST(MOE_AMX_PRODUCT)
MOE_AMX_LIST_32(MOE_AMX_PRODUCT_32)

static const char *moe_amx_check(void);

moe_isa MOE_ISA_SYMBOL = {.name = MOE_ISA_NAME, .features = MOE_ISA_FEATURES, .for_tests = MOE_AMX_EMULATED, .check = moe_amx_check};

#define MOE_AMX_ENTRY(id, NAME, ...) MOE_ISA_SYMBOL.types[id].mul_mat = mul_mat_amx_##NAME;

__attribute__((constructor)) static void moe_amx_fill_table(void) {
    const moe_isa own = MOE_ISA_SYMBOL;
    MOE_ISA_SYMBOL = moe_isa_avx512;
    MOE_ISA_SYMBOL.name = own.name, MOE_ISA_SYMBOL.features = own.features;
    MOE_ISA_SYMBOL.for_tests = own.for_tests, MOE_ISA_SYMBOL.check = own.check;
    MOE_AMX_LIST(MOE_AMX_ENTRY)
    MOE_AMX_LIST_32(MOE_AMX_ENTRY)
#if MOE_HAS_FP16 && !MOE_AMX_EMULATED
    if (moe_has_fp16()) MOE_ISA_SYMBOL.attention_f16 = moe_attention_fp16;
#endif
}

#include "amx_check.h"
