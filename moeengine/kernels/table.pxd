"""The table of compiled kernels and the choice of one; csrc/moe_table.h says what entries promise."""
from libc.stdint cimport int32_t, uint16_t

cdef extern from "moe_table.h":
    enum:
        MOE_X_F32
        MOE_X_F16
        MOE_X_BF16
        MOE_X_Q8_0
        MOE_X_Q8_K
        MOE_X_COUNT
        MOE_TYPE_MAX
        MOE_KV_TILE
        MOE_KV_SEGMENT
        MOE_F16_POSITIONS

    ctypedef struct moe_x:
        size_t block
        size_t bytes
        void (*quantize_row)(size_t n, const float *x, void *y) noexcept nogil

    ctypedef struct moe_mul:
        size_t n_in
        size_t n_rows
        const void *w
        size_t w_stride
        size_t n_x
        const void *x
        size_t x_stride
        float *out
        size_t out_stride
        const void *next

    ctypedef struct moe_type:
        const char *name
        int32_t id
        int32_t x_format
        size_t block
        size_t bytes
        void (*dequantize_row)(size_t n, const void *w, float *y) noexcept nogil
        void (*mul_mat)(const moe_mul *m) noexcept nogil

    ctypedef struct moe_attn:
        size_t head_dim_k
        size_t head_dim_v
        size_t n_q
        const float *const *q
        float *const *out
        const int32_t *n_kv
        const int32_t *kv_begin
        const uint16_t *k
        size_t k_tile_stride
        const uint16_t *v
        size_t v_tile_stride
        size_t n_tiles
        float scale
        float softcap
        const float *sink
        void *scratch

    ctypedef struct moe_weighted:
        size_t n
        size_t n_rows
        const int32_t *pair
        int32_t n_used
        const float *weight
        const float *x
        size_t x_stride
        float *y
        size_t y_stride

    ctypedef struct moe_delta:
        size_t dim
        size_t n_rows
        size_t n_tokens
        float *state
        const float *q
        const float *k
        float *v
        size_t v_stride
        const float *decay
        int by_element
        const float *beta
        float scale

    ctypedef struct moe_ssm:
        size_t dim
        size_t n_rows
        size_t n_tokens
        float *state
        const float *b
        const float *c
        float *x
        size_t x_stride
        const float *decay
        const float *dt
        float skip

    ctypedef struct moe_selective:
        size_t dim
        size_t n_channels
        size_t n_tokens
        float *state
        const float *a
        size_t row_stride
        const float *b
        const float *c
        size_t b_stride
        float *x
        const float *dt
        size_t x_stride
        const float *skip

    ctypedef struct moe_isa:
        const char *name
        const char *features
        int for_tests
        const char *(*check)() noexcept nogil
        const moe_type *types                 # MOE_TYPE_MAX entries, index: ggml type id
        const moe_x *x                        # MOE_X_COUNT entries
        void (*rms_norm)(size_t n, const float *x, const float *w, float eps, float *y) noexcept nogil
        void (*layer_norm)(size_t n, const float *x, const float *w, float eps, float *y) noexcept nogil
        void (*add)(size_t n, const float *a, const float *b, float *y) noexcept nogil
        void (*mul)(size_t n, const float *a, const float *b, float *y) noexcept nogil
        void (*scale)(size_t n, float a, const float *x, float *y) noexcept nogil
        int (*add_weighted)(const moe_weighted *a) noexcept nogil
        void (*silu_mul)(size_t n, const float *gate, const float *up, float *y) noexcept nogil
        void (*relu_mul)(size_t n, const float *gate, const float *up, float *y) noexcept nogil
        void (*gelu_mul)(size_t n, const float *gate, const float *up, float *y) noexcept nogil
        void (*silu_bounded)(size_t n, const float *gate, const float *up, float bound, float *y) noexcept nogil
        void (*softcap)(size_t n, float cap, const float *x, float *y) noexcept nogil
        void (*swiglu_oai)(size_t n, const float *gate, const float *up, float *y) noexcept nogil
        void (*swiglu_clamp)(size_t n, const float *gate, const float *up, float bound, float *y) noexcept nogil
        void (*sigmoid_mul)(size_t n, const float *gate, const float *x, float *y) noexcept nogil
        void (*conv_silu)(size_t n, size_t n_taps, const float *const *x, const float *w, size_t w_stride,
                          const float *bias, float *y) noexcept nogil
        void (*conv_mul)(size_t n, size_t n_taps, const float *const *x, const float *w, size_t w_stride, const float *gate,
                         float *y) noexcept nogil
        void (*delta_rule)(const moe_delta *d) noexcept nogil
        void (*ssm_scan)(const moe_ssm *m) noexcept nogil
        void (*selective_scan)(const moe_selective *m) noexcept nogil
        void (*rope)(size_t n_rot, const float *cs, int neox, float *x) noexcept nogil
        void (*f32_to_f16)(size_t n, const float *x, uint16_t *y) noexcept nogil
        void (*f16_to_f32)(size_t n, const uint16_t *x, float *y) noexcept nogil
        int (*softmax)(size_t n, float *x) noexcept nogil
        void (*k_store)(size_t n_tokens, size_t head_dim_k, size_t pos, const float *k, size_t k_row_stride,
                        uint16_t *tiles, size_t k_tile_stride) noexcept nogil
        void (*attention)(const moe_attn *a) noexcept nogil
        void (*attention_f16)(const moe_attn *a) noexcept nogil
        void (*attention_segment)(const moe_attn *a, size_t segment, float *partial) noexcept nogil
        void (*attention_merge)(const moe_attn *a, size_t n_segments, float *partial,
                                size_t segment_stride) noexcept nogil
        size_t (*attn_scratch_bytes)(size_t n_q, size_t head_dim_k, size_t head_dim_v) noexcept nogil

    size_t moe_attn_partial_floats(size_t head_dim_v) noexcept nogil
    void moe_fetch_for_writing(const void *p) noexcept nogil
    size_t moe_x_row_bytes(const moe_isa *isa, int format, size_t n) noexcept nogil

# The chosen table, or NULL while no choice could be made (MOEENGINE_ISA names an instruction set that
# is not there). Callers that may come first use checked_isa() below once, with the GIL, before going
# nogil.
cdef const moe_isa *active() noexcept nogil

# The chosen table, never NULL; raises UnsupportedError where active() would be NULL.
cdef const moe_isa *checked_isa() except NULL
