"""The dense feed-forward network: x += down(activation(gate(n)) * up(n)), or without a gate down(activation(up(n))), n = norm(x).

Also the shared expert of a MoE layer, which runs on the same normed rows beside the routed ones.
"""
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport calloc, free

from moeengine.graph.activation cimport (
    GELU, RELU, RELU_SQR, SILU, SILU_BOUNDED, SWIGLU_CLAMP, SWIGLU_OAI, GatedActivation, activate,
)
from moeengine.graph.block cimport (
    Block, Linear, Pass, Residual, StreamNorm, add_residual, linear, read_stream, residual_init, stream_norm_init,
)
from moeengine.graph.ffn cimport DenseFfn, dense_ffn
from moeengine.graph.weights cimport Vector, Weight
from moeengine.kernels.table cimport moe_x_row_bytes
from moeengine.kernels.threads cimport team_barrier, team_claim

ACTIVATIONS = {"silu": SILU, "relu": RELU, "relu_sqr": RELU_SQR, "gelu": GELU, "swiglu_oai": SWIGLU_OAI, "swiglu_clamp": SWIGLU_CLAMP,
               "silu_bounded": SILU_BOUNDED}


cdef void dense_ffn(Pass *p, const DenseFfn *d, float *out) noexcept nogil:
    """out (T, E) = down(activation(gate(norm)) * up(norm)); p.xq holds the normed rows."""
    cdef int64_t T = p.n_tokens, t
    cdef const uint8_t *x[2]
    cdef size_t stride[2]
    cdef float *hidden[2]
    cdef int i, f
    for i in range(2):
        f = d.gate_up[i].type.x_format
        x[i] = p.xq[f]
        stride[i] = moe_x_row_bytes(p.isa, f, <size_t>d.n_embd)
    hidden[0] = p.hidden
    hidden[1] = p.hidden + T * d.n_ff
    linear(p, d.gate_up + d.first, 2 - d.first, x + d.first, stride + d.first, hidden + d.first, T)
    f = d.down.type.x_format
    stride[0] = moe_x_row_bytes(p.isa, f, <size_t>d.n_ff)
    while True:
        t = team_claim(p.team, T)
        if t < 0:
            break
        activate(p.isa, &d.activation, d.n_ff, hidden[0] + t * d.n_ff, hidden[1] + t * d.n_ff)
        p.isa.x[f].quantize_row(<size_t>d.n_ff, hidden[0] + t * d.n_ff, p.hq + <size_t>t * stride[0])
    team_barrier(p.team)
    x[0] = p.hq
    hidden[0] = out
    linear(p, &d.down, 1, x, stride, hidden, T)


cdef struct FfnState:
    DenseFfn ffn
    StreamNorm norm
    Residual residual
    unsigned formats


cdef void ffn_run(void *state, Pass *p, int ith, int nth) noexcept nogil:
    cdef const FfnState *s = <const FfnState *>state
    cdef int64_t E = s.ffn.n_embd
    read_stream(p, &s.norm, s.formats, E)
    dense_ffn(p, &s.ffn, p.out)
    add_residual(p, E, &s.residual)


cdef void dense_ffn_init(DenseFfn *d, gate, Weight up, Weight down, str activation, float bound):
    d.activation.kind, d.activation.bound, d.first = ACTIVATIONS[activation], bound, 1 if gate is None else 0
    d.n_embd, d.n_ff = up.linear.n_in, up.linear.n_rows
    d.gate_up[0], d.gate_up[1], d.down = (<Weight?>(up if gate is None else gate)).linear, up.linear, down.linear
    # Dense networks scale after the bias, as llama.cpp's build_ffn; all others before.
    d.gate_up[0].bias_first = d.gate_up[1].bias_first = d.down.bias_first = True


cdef class FfnBlock(Block):
    """x = after * (x + residual_scale * post_norm(dense FFN of norm(x))).

    Parameters
    ----------
    ffn_norm : Vector (E,)
    gate : Weight (G, E) or None   None: the activation is one of up alone
    up, down : Weight              (G, E), (E, G)
    activation, bound              see ACTIVATIONS and activation.pxd
    centred, of_kept : bool        see StreamNorm
    post_norm : Vector (E,) or None
    """

    def __init__(self, *, Vector ffn_norm, gate, Weight up, Weight down, float eps, float residual_scale=1.0,
                 str activation="silu", float bound=0, post_norm=None, float after=1.0, bint centred=False,
                 bint of_kept=False):
        cdef FfnState *s = <FfnState *>calloc(1, sizeof(FfnState))
        if s == NULL:
            raise MemoryError
        self.state = s
        self.run = ffn_run
        self.keep = [ffn_norm, gate, up, down, post_norm]
        dense_ffn_init(&s.ffn, gate, up, down, activation, bound)
        stream_norm_init(&s.norm, ffn_norm, None, eps, centred, of_kept)
        residual_init(&s.residual, residual_scale, post_norm, eps, after)
        s.formats = 1u << s.ffn.gate_up[0].type.x_format | 1u << s.ffn.gate_up[1].type.x_format

    def __dealloc__(self):
        free(self.state)
