from libc.stdint cimport uint8_t

from moeengine.kernels.threads cimport Team


cdef class Region:
    cdef uint8_t *base           # 2 MB aligned
    cdef void *reserved          # what mmap gave
    cdef size_t reserved_bytes
    cdef readonly size_t n_bytes


cdef Region scratch_of(Team team, size_t n_bytes)

# The next n bytes of what begins at `base`, 64-byte aligned as base is, and `at` moved past them. base NULL: only counted.
cdef inline uint8_t *take(uint8_t *base, size_t *at, size_t n) noexcept nogil:
    cdef uint8_t *here = base + at[0] if base != NULL else NULL
    at[0] += (n + 63) & ~<size_t>63
    return here
