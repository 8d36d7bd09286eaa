from moeengine.graph.block cimport Pass
from moeengine.graph.moe_state cimport MoeState, Tier

# out[token] += weighted experts of one tier, for all tokens. Called by every member of the team; the results are
# complete after a barrier.
cdef void tier_run(const MoeState *s, const Tier *tier, Pass *p, int ith) noexcept nogil
