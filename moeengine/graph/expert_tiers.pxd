from libc.stdint cimport int64_t

from moeengine.graph.moe_state cimport Tier
from moeengine.graph.weights cimport Vector, Weight

cdef class BankWeights:
    cdef readonly Weight first
    cdef readonly int64_t stride
    cdef readonly Vector scale, bias
    cdef readonly object tensor      # loader.banks.BankTensor

cdef class TierWeights:
    cdef readonly int first, n_expert
    cdef readonly tuple banks

cdef void tier_init(Tier *tier, TierWeights weights)
