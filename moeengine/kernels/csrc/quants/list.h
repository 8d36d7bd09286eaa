/* The one list of weight types. Columns: ggml type id, GGUF name, weights a block, bytes a block,
 * activation format (moe_x_format) it is multiplied with.
 *
 * The C table, the size assertions and the Python table all come from here. */
#define MOE_QUANT_LIST(X)                    \
    X(0, F32, 1, 4, MOE_X_F32)               \
    X(1, F16, 1, 2, MOE_X_F16)               \
    X(30, BF16, 1, 2, MOE_X_BF16)            \
    X(2, Q4_0, 32, 18, MOE_X_Q8_0)           \
    X(3, Q4_1, 32, 20, MOE_X_Q8_0)           \
    X(6, Q5_0, 32, 22, MOE_X_Q8_0)           \
    X(7, Q5_1, 32, 24, MOE_X_Q8_0)           \
    X(8, Q8_0, 32, 34, MOE_X_Q8_0)           \
    X(10, Q2_K, 256, 84, MOE_X_Q8_K)         \
    X(11, Q3_K, 256, 110, MOE_X_Q8_K)        \
    X(12, Q4_K, 256, 144, MOE_X_Q8_K)        \
    X(13, Q5_K, 256, 176, MOE_X_Q8_K)        \
    X(14, Q6_K, 256, 210, MOE_X_Q8_K)        \
    X(19, IQ1_S, 256, 50, MOE_X_Q8_K)        \
    X(29, IQ1_M, 256, 56, MOE_X_Q8_K)        \
    X(16, IQ2_XXS, 256, 66, MOE_X_Q8_K)      \
    X(17, IQ2_XS, 256, 74, MOE_X_Q8_K)       \
    X(22, IQ2_S, 256, 82, MOE_X_Q8_K)        \
    X(18, IQ3_XXS, 256, 98, MOE_X_Q8_K)      \
    X(21, IQ3_S, 256, 110, MOE_X_Q8_K)       \
    X(20, IQ4_NL, 32, 18, MOE_X_Q8_0)        \
    X(23, IQ4_XS, 256, 136, MOE_X_Q8_K)      \
    X(39, MXFP4, 32, 17, MOE_X_Q8_0)         \
    X(40, NVFP4, 64, 36, MOE_X_Q8_0)         \
    X(34, TQ1_0, 256, 54, MOE_X_Q8_K)        \
    X(35, TQ2_0, 256, 66, MOE_X_Q8_K)
