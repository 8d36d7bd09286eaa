"""Dequantizing and matrix products on NumPy arrays, rows split over a team.

Arguments are checked in kernels/__init__.py; nothing is checked here."""
from libc.stdint cimport int64_t, uint8_t, uintptr_t

import numpy as np

from .table cimport checked_isa, moe_isa, moe_mul, moe_type, moe_x, moe_x_row_bytes
from .threads cimport Team, moe_team, team_barrier, team_claim, team_run

# Rows of weights in a unit of work: a multiple of every panel height.
cdef int64_t CHUNK = 64


cdef int64_t _unit_rows(int64_t n_rows, int64_t n_x, int nth) noexcept nogil:
    """Rows of weights a team member takes at a time. One activation row: up to four chunks, since every unit starts
    with lines that nothing has fetched yet."""
    if n_x > 1:
        return CHUNK
    return max(CHUNK, min(4 * CHUNK, n_rows // (4 * nth) // CHUNK * CHUNK))


def aligned_bytes(Py_ssize_t n_bytes):
    """uint8 (n_bytes), uninitialized, first byte at a multiple of 64."""
    buf = np.empty(n_bytes + 64, np.uint8)
    cdef Py_ssize_t skip = -<uintptr_t>buf.ctypes.data & 63
    return buf[skip:skip + n_bytes]


def x_row_bytes(int type_id, Py_ssize_t n):
    """Bytes of an activation row of n values, as weight type `type_id` is multiplied with."""
    cdef const moe_isa *isa = checked_isa()
    return moe_x_row_bytes(isa, isa.types[type_id].x_format, n)


def dequantize_rows(const uint8_t[:, :] raw, int type_id, float[:, ::1] out):
    """raw uint8 (R, bytes), last axis contiguous -> out float32 (R, C)."""
    cdef const moe_type *qtype = &checked_isa().types[type_id]
    cdef Py_ssize_t r
    if out.shape[0] == 0 or out.shape[1] == 0:
        return
    with nogil:
        for r in range(out.shape[0]):
            qtype.dequantize_row(out.shape[1], &raw[r, 0], &out[r, 0])


cdef struct Product:
    const moe_type *type
    const moe_x *x_format
    moe_team *team
    moe_mul mul             # all rows, all activation rows
    const float *values     # (n_x, n_in), not quantized yet


cdef void _product(void *arg, int ith, int nth) noexcept nogil:
    cdef Product *p = <Product *>arg
    cdef moe_mul part = p.mul
    cdef int64_t t, i, n_rows = p.mul.n_rows, n_x = p.mul.n_x, unit = _unit_rows(n_rows, n_x, nth)
    t = ith
    while t < n_x:
        p.x_format.quantize_row(part.n_in, p.values + t * <int64_t>part.n_in,
                                <char *>part.x + t * <int64_t>part.x_stride)
        t += nth
    team_barrier(p.team)
    i = team_claim(p.team, (n_rows + unit - 1) // unit)
    while i >= 0:
        part.w = <const char *>p.mul.w + i * unit * <int64_t>part.w_stride
        part.n_rows = min(unit, n_rows - i * unit)
        part.out = p.mul.out + i * unit
        p.type.mul_mat(&part)
        i = team_claim(p.team, (n_rows + unit - 1) // unit)


def mul_mat_rows(const uint8_t[:, :] raw, int type_id, const float[:, ::1] x, float[:, ::1] out,
                 Team team):
    """out (T, R) = x (T, C) @ W.T; raw uint8 (R, bytes), last axis contiguous."""
    cdef const moe_isa *isa = checked_isa()
    cdef Product p
    if out.shape[0] == 0 or out.shape[1] == 0:
        return
    if x.shape[1] == 0:
        out[:, :] = 0
        return
    p.type = &isa.types[type_id]
    p.x_format = &isa.x[p.type.x_format]
    p.team = team.team
    p.values = &x[0, 0]
    p.mul.n_in = x.shape[1]
    p.mul.n_rows = raw.shape[0]
    p.mul.w = &raw[0, 0]
    p.mul.w_stride = raw.strides[0]
    p.mul.n_x = x.shape[0]
    p.mul.x_stride = moe_x_row_bytes(isa, p.type.x_format, x.shape[1])
    cdef uint8_t[::1] rows = aligned_bytes(p.mul.x_stride * p.mul.n_x)
    p.mul.x = &rows[0]
    p.mul.out = &out[0, 0]
    p.mul.out_stride = out.shape[1]
    p.mul.next = NULL
    with nogil:
        team_run(team.team, _product, &p)
