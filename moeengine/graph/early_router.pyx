"""A router that chooses a layer's experts before its attention: logits from the residual stream as it stands, without a norm.

They wait in Pass.route_probs for the layer's MoeBlock, which chooses.
"""
from libc.stdint cimport uint8_t
from libc.stdlib cimport calloc, free

from moeengine.graph.block cimport Block, Linear, Pass, linear, quantize_rows
from moeengine.graph.weights cimport Weight
from moeengine.kernels.table cimport moe_x_row_bytes


cdef void early_router_run(void *state, Pass *p, int ith, int nth) noexcept nogil:
    cdef const Linear *router = <const Linear *>state
    cdef int f = router.type.x_format
    cdef const uint8_t *x = p.xq[f]
    cdef size_t x_stride = moe_x_row_bytes(p.isa, f, <size_t>router.n_in)
    cdef float *out = p.route_probs
    quantize_rows(p, p.x, p.n_tokens, router.n_in, <size_t>router.n_in, f, p.xq[f])
    linear(p, router, 1, &x, &x_stride, &out, p.n_tokens)


cdef class EarlyRouterBlock(Block):
    """route_probs = router(x). router : Weight (X, E)."""

    def __init__(self, Weight router):
        cdef Linear *w = <Linear *>calloc(1, sizeof(Linear))
        if w == NULL:
            raise MemoryError
        self.state = w
        self.run = early_router_run
        self.keep = [router]
        w[0] = router.linear

    def __dealloc__(self):
        free(self.state)
