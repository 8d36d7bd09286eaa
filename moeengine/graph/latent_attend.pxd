from libc.stdint cimport int64_t

from moeengine.graph.block cimport Pass
from moeengine.graph.latent_state cimport Latent

# Rows are (token, head) pairs: row r is head r % H of token t0 + r / H. Those in p.latent_rows are queries before and results
# after, latent_row(m) floats apart. n tokens from t0 on; ends with a barrier.
cdef void attend_latents(const Latent *m, Pass *p, int64_t t0, int64_t n, int ith, int nth) noexcept nogil
