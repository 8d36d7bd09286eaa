from moeengine.graph.block cimport Pass
from moeengine.graph.moe_state cimport MoeState

cdef void guess_ahead(const MoeState *s, Pass *p) noexcept nogil
cdef void drop_cold(MoeState *s, Pass *p) noexcept nogil
