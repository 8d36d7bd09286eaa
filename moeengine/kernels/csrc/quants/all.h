/* Every quant type of this instruction set: MOE_TYPES_INIT fills moe_isa.types, MOE_X_INIT moe_isa.x. */
#define MOE_TYPES_INIT {0}
#define MOE_X_INIT {0}
