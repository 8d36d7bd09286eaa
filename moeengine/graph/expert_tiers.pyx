"""The expert tensors of a layer as its block takes them: banks, and the tiers they form."""
from moeengine.graph.moe_state cimport Tier
from moeengine.graph.weights cimport Vector, Weight


cdef class BankWeights:
    """One expert tensor (n_expert, rows, columns) of a tier.

    first : Weight                 expert 0; its `rows` and columns are every expert's
    stride : int                   bytes between two experts
    scale : Vector (n_expert,) or None
    bias : Vector (n_expert * rows,) or None
    tensor : loader.banks.BankTensor
    """

    def __init__(self, Weight first, stride, scale, bias, tensor):
        self.first, self.stride, self.scale, self.bias, self.tensor = first, stride, scale, bias, tensor

    @property
    def address(self):
        """Of expert 0's first byte in the mapping."""
        return <size_t>self.first.linear.w


cdef class TierWeights:
    """Experts first .. first + n_expert - 1, their gate, up and down banks."""

    def __init__(self, int first, int n_expert, BankWeights gate, BankWeights up, BankWeights down):
        self.first, self.n_expert, self.banks = first, n_expert, (gate, up, down)


cdef void tier_init(Tier *tier, TierWeights weights):
    cdef BankWeights b
    tier.first, tier.n_expert = weights.first, weights.n_expert
    for i in range(3):
        b = weights.banks[i]
        tier.bank[i].one = b.first.linear
        tier.bank[i].stride = b.stride
        tier.bank[i].scale = b.scale.data if b.scale is not None else NULL
        tier.bank[i].bias = b.bias.data if b.bias is not None else NULL
