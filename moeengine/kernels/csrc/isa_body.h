/* The kernels of one instruction set, compiled with the vocabulary that was included before. */
#include "moe_table.h"
#include "ops.h"
#include "delta_rule.h"
#include "selective_scan.h"
#include "ssm_scan.h"
#include "attention.h"
#include "attention_f16.h"
#include "quants/all.h"

extern const moe_isa MOE_ISA_SYMBOL;
const moe_isa MOE_ISA_SYMBOL = {
    .name = MOE_ISA_NAME,
    .features = MOE_ISA_FEATURES,
    .types = {MOE_TYPES_INIT},
    .x = {MOE_X_INIT MOE_X_OWN},
    .rms_norm = rms_norm,
    .layer_norm = layer_norm,
    .add = add_rows,
    .mul = mul_rows,
    .scale = scale_row,
    .add_weighted = add_weighted,
    .silu_mul = silu_mul,
    .relu_mul = relu_mul,
    .gelu_mul = gelu_mul,
    .silu_bounded = silu_bounded,
    .softcap = softcap,
    .swiglu_oai = swiglu_oai,
    .swiglu_clamp = swiglu_clamp,
    .sigmoid_mul = sigmoid_mul,
    .conv_silu = conv_silu,
    .conv_mul = conv_mul,
    .delta_rule = delta_rule,
    .ssm_scan = ssm_scan,
    .selective_scan = selective_scan,
    .rope = rope,
    .f32_to_f16 = f32_to_f16,
    .f16_to_f32 = f16_to_f32,
    .softmax = softmax,
    .k_store = k_store,
    .attention = attention,
    .attention_f16 = attention_f16,
    .attention_segment = attention_segment,
    .attention_merge = attention_merge,
    .attn_scratch_bytes = attn_scratch_bytes,
};
