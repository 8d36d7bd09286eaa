from libc.stdint cimport uint8_t

from moeengine.kernels.threads cimport Team


cdef class Region:
    cdef uint8_t *base
    cdef readonly size_t n_bytes


cdef Region scratch_of(Team team, size_t n_bytes)
