from libc.stdint cimport int64_t

from moeengine.graph.block cimport Linear, Pass
from moeengine.graph.weights cimport Weight

cdef struct DenseFfn:
    int64_t n_embd, n_ff
    int n_up               # 2: gate and up; 1: no gate, gate_up[0] is up, and its square where positive is the activation
    Linear gate_up[2]
    Linear down
    float bound            # of gate and up; 0: none

cdef void dense_ffn(Pass *p, const DenseFfn *d, float *out) noexcept nogil
cdef void dense_ffn_init(DenseFfn *d, Weight gate, Weight up, Weight down, float bound)
