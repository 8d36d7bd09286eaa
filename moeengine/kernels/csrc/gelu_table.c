/* The table behind gelu_mul, once for all instruction sets. */
#include "moe_table.h"

#include "generated/gelu.h"
