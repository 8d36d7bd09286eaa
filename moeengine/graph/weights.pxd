"""Weight tensors as blocks use them: a pointer, a type, a shape."""
from libc.stdint cimport int32_t

from moeengine.graph.block cimport Linear

cdef class Weight:
    cdef Linear linear
    cdef object owner        # keeps the mapping alive
    cdef readonly str name
    cdef object bias_owner

cdef class Vector:
    cdef const float *data
    cdef readonly Py_ssize_t size
    cdef object owner
    cdef readonly str name

cdef class IdTable:
    cdef const int32_t *data     # n_rows rows of n_cols ids
    cdef readonly Py_ssize_t n_rows, n_cols
    cdef object owner
    cdef readonly str name

cdef const float *values_of(vector) except? NULL
