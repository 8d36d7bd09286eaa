"""The gated activations of feed-forward networks; moe_isa says what each computes."""
from libc.stdint cimport int64_t

from moeengine.kernels.table cimport moe_isa

cdef enum Activation:
    SILU
    RELU
    RELU_SQR            # max(up, 0)^2: there is no gate
    GELU
    SWIGLU_OAI
    SWIGLU_CLAMP        # gate and up bounded
    SILU_BOUNDED        # silu(gate) and up bounded

cdef struct GatedActivation:
    Activation kind
    float bound         # of the last two; 0: none, which leaves silu


cdef inline void activate(const moe_isa *isa, const GatedActivation *a, int64_t n, float *gate, const float *up) noexcept nogil:
    """gate (n,) = activation(gate) * up"""
    if a.kind == RELU:
        isa.relu_mul(<size_t>n, gate, up, gate)
    elif a.kind == RELU_SQR:
        isa.relu_mul(<size_t>n, up, up, gate)
    elif a.kind == GELU:
        isa.gelu_mul(<size_t>n, gate, up, gate)
    elif a.kind == SWIGLU_OAI:
        isa.swiglu_oai(<size_t>n, gate, up, gate)
    elif a.kind == SWIGLU_CLAMP and a.bound > 0:
        isa.swiglu_clamp(<size_t>n, gate, up, a.bound, gate)
    elif a.kind == SILU_BOUNDED and a.bound > 0:
        isa.silu_bounded(<size_t>n, gate, up, a.bound, gate)
    else:
        isa.silu_mul(<size_t>n, gate, up, gate)
