/* The baseline: any CPU, no instructions beyond what the platform guarantees. The specification of
 * every result. */
#define MOE_ISA_SYMBOL moe_isa_scalar
#define MOE_ISA_NAME "scalar"
#define MOE_ISA_FEATURES ""

#include "simd/scalar.h"
#include "isa_body.h"
