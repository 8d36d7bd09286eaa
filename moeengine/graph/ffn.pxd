from libc.stdint cimport int64_t

from moeengine.graph.activation cimport GatedActivation
from moeengine.graph.block cimport Linear, Pass
from moeengine.graph.weights cimport Weight

cdef struct DenseFfn:
    int64_t n_embd, n_ff
    int first              # 1: there is no gate, gate_up[1] alone is used
    Linear gate_up[2]
    Linear down
    GatedActivation activation

cdef void dense_ffn(Pass *p, const DenseFfn *d, float *out) noexcept nogil
cdef void dense_ffn_init(DenseFfn *d, gate, Weight up, Weight down, str activation, float bound)
