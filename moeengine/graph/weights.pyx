"""Tensors of a model file, found by name, checked for shape and type, handed to blocks as pointers.

Matrices stay in the mapping. Vectors (norms, biases, scales) are float32 arrays: in place where the
file has them so, else converted once.
"""
from libc.stdint cimport int32_t, int64_t, uint8_t

import re

import numpy as np

from moeengine.kernels.table cimport MOE_TYPE_MAX, checked_isa, moe_isa, moe_type

from moeengine import kernels
from moeengine.errors import GGUFError, UnsupportedError
from moeengine.loader.messages import escaped


cdef class Weight:
    """A matrix (n_rows, n_in) in a quant type, with its optional bias and scale."""

    @property
    def n_rows(self):
        return self.linear.n_rows

    @property
    def n_in(self):
        return self.linear.n_in

    @property
    def x_format(self):
        """Activation format (moe_x_format) that this matrix is multiplied with."""
        return self.linear.type.x_format

    @property
    def n_bytes(self):
        return self.linear.n_rows * self.linear.row_bytes

    def set_bias(self, Vector bias):
        if bias is not None:
            self.linear.bias = bias.data
            self.bias_owner = bias

    def forget(self):
        """Let go of the bytes: for an expert bank whose slices come from a supply alone."""
        self.linear.w, self.owner = NULL, None

    def set_scale(self, scale):
        self.linear.scale = scale

    def rows(self, int64_t first, int64_t n):
        """The matrix of n rows from `first` on: a part of a fused tensor. Bias and scale go along."""
        cdef Weight part = Weight.__new__(Weight)
        part.linear = self.linear
        part.linear.w = self.linear.w + <size_t>first * self.linear.row_bytes
        part.linear.n_rows = n
        if self.linear.bias != NULL:
            part.linear.bias = self.linear.bias + first
        part.owner, part.bias_owner, part.name = self.owner, self.bias_owner, self.name
        return part


cdef class Vector:
    """float32 values (size,)."""

    def __init__(self, array, str name=""):
        cdef const float[::1] view = np.ascontiguousarray(array, np.float32).reshape(-1)
        self.owner = view
        self.size = view.shape[0]
        self.data = &view[0] if view.shape[0] else NULL
        self.name = name

    def array(self):
        """The values as a NumPy array (size,), not copied."""
        return np.asarray(self.owner)


cdef const float *values_of(vector) except? NULL:
    """The values of a Vector, NULL for None."""
    return (<Vector?>vector).data if vector is not None else NULL


cdef class IdTable:
    """Ids, int32 (n_rows, n_cols), checked by who made it."""

    def __init__(self, array, str name=""):
        cdef const int32_t[:, ::1] view = array
        self.owner = view
        self.n_rows, self.n_cols, self.name = view.shape[0], view.shape[1], name
        self.data = &view[0, 0]


cdef const moe_type *type_of(qtype, str where) except NULL:
    cdef const moe_isa *isa = checked_isa()
    cdef int i = int(qtype)
    if i < 0 or i >= MOE_TYPE_MAX or isa.types[i].name == NULL:
        raise UnsupportedError(
            f"{where}: quant type {qtype.name} is not supported as a weight; supported: "
            + ", ".join(sorted(kernels.quant_types()))
        )
    return &isa.types[i]


class Tensors:
    """The tensors of one model, by name and expected shape.

    Every look-up is remembered, so that `unused` can name what no block asked for, and so is every address
    that was handed out: `pointers`, list of (name, address), without those of expert banks.
    """

    def __init__(self, model_file):
        self.file = model_file
        self.used = set()
        self.pointers = []
        self.left_out = {"scale": ("ffn_",)}  # see leave_out

    def leave_out(self, ending, *beginnings):
        """Have `.bias` or `.scale` not applied beside matrices whose names begin so, after the layer's number, in the place of
        what was left out before: llama.cpp loads a scale of every matrix that may be NVFP4 and biases of all attention, but most
        architectures use neither all of these nor the scales of feed-forward networks."""
        self.left_out[ending] = beginnings

    def apply_scales(self):
        """Have all scales applied, those of feed-forward networks too."""
        self.leave_out("scale")

    def is_applied(self, name):
        """Whether a bias or scale is."""
        beginnings = self.left_out.get(name.rpartition(".")[2], ())
        return not re.sub(r"^blk\.\d+\.", "", name).startswith(beginnings)

    def where(self, name):
        info = self.file.tensors.get(name)
        path = self.file.files[info.shard if info is not None else 0].path
        return f"{path}: tensor {name}"

    def has(self, name):
        return name in self.file.tensors

    def info(self, name, shape=None):
        """TensorInfo of `name`; GGUFError when it is missing or has another shape.

        `shape` is row-major; None in it allows any length.
        """
        info = self.file.tensors.get(name)
        if info is None:
            raise GGUFError(f"{self.where(name)}: missing; the architecture "
                            f"{self.file.architecture} needs it" + similar(self.file.tensors, name))
        self.used.add(name)
        if shape is not None:
            found = (1,) * (len(shape) - len(info.shape)) + tuple(info.shape)  # llama.cpp saves no axes of length 1 in front
            if len(found) != len(shape) or any(w is not None and w != f for f, w in zip(found, shape)):
                want = " x ".join("any" if w is None else str(w) for w in shape)
                raise GGUFError(f"{self.where(name)}: found shape {' x '.join(map(str, info.shape))}, expected {want}")
        return info

    def vector(self, name, n, optional=False):
        """Vector (n,) in float32, or None when optional and absent."""
        if optional and not self.has(name):
            return None
        info = self.info(name)
        count = int(np.prod(info.shape))
        if n is not None and count != n:
            raise GGUFError(f"{self.where(name)}: found {count} values, expected {n}")
        raw = self.file.raw(name)
        if info.qtype.name == "F32":
            flat = raw.reshape(-1)
            if flat.ctypes.data % 4 == 0:
                self.pointers.append((name, flat.ctypes.data))
                return Vector(flat.view(np.float32), name)
        type_of(info.qtype, self.where(name))
        return Vector(kernels.dequantize(raw, info.qtype), name)

    def matrix(self, name, n_rows, n_in, optional=False, with_scale=True, with_bias=True):
        """Weight (n_rows, n_in) with the `.bias` and `.scale` that stand beside it, or None.

        with_scale : True, False (is not applied) or None (what stands there is no factor of the matrix)
        """
        if optional and not self.has(name):
            return None
        info = self.info(name)
        shape = info.shape if len(info.shape) == 2 else (1,) + tuple(info.shape)
        if tuple(shape) != (n_rows, n_in):
            raise GGUFError(f"{self.where(name)}: found shape {' x '.join(map(str, info.shape))}, "
                            f"expected {n_rows} x {n_in}")
        weight = self._weight(name, info, n_rows, n_in)
        self.pointers.append((name, self.file.address(name)))
        base = name.removesuffix(".weight")
        if with_bias:
            bias = self.vector(base + ".bias", n_rows, optional=True)
            weight.set_bias(bias if self.is_applied(base + ".bias") else None)
        scale = self.vector(base + ".scale", 1, optional=True) if with_scale is not None else None
        if with_scale and scale is not None and self.is_applied(base + ".scale"):
            weight.set_scale(float(scale.array()[0]))
        return weight

    def matrices(self, name, n, n_rows, n_in):
        """Weight (n * n_rows, n_in): the n matrices of one tensor, one after the other. They have neither bias nor scale."""
        info = self.info(name, (n, n_rows, n_in))
        self.pointers.append((name, self.file.address(name)))
        return self._weight(name, info, n * n_rows, n_in)

    def ids(self, name, n_rows, n_cols, n_ids):
        """IdTable (n_rows, n_cols or more) of ids below n_ids. GGUFError: another shape, type or id."""
        info = self.info(name, (n_rows, None))
        if info.qtype.name != "I32" or info.shape[len(info.shape) - 1] < n_cols:
            raise GGUFError(f"{self.where(name)}: found {info.qtype.name} {' x '.join(map(str, info.shape))}, expected "
                            f"I32 {n_rows} x {n_cols}")
        raw = self.file.raw(name)
        self.pointers.append((name, raw.ctypes.data))
        flat = raw.reshape(-1)
        array = (flat if flat.ctypes.data % 4 == 0 else flat.copy()).view("<i4").reshape(n_rows, -1)
        wrong = np.argwhere((array < 0) | (array >= n_ids))
        if len(wrong):
            row, col = wrong[0]
            raise GGUFError(f"{self.where(name)}: row {row}, column {col}: found {array[row, col]}, expected 0 to {n_ids - 1}")
        return IdTable(array, name)

    def expert(self, bank, info):
        """Weight (n_rows, n_cols) of expert 0 of a loader.banks.BankTensor."""
        return self._weight(bank.name, info, bank.n_rows, bank.n_cols, bank.row_offset)

    def _weight(self, name, info, n_rows, n_in, first_row=0):
        cdef Weight weight = Weight.__new__(Weight)
        cdef size_t address = self.file.address(name)
        weight.linear.type = type_of(info.qtype, self.where(name))
        weight.linear.w = <const uint8_t *>address
        weight.linear.n_in = n_in
        weight.linear.n_rows = n_rows
        weight.linear.row_bytes = <size_t>n_in // weight.linear.type.block * weight.linear.type.bytes
        weight.linear.w += <size_t>first_row * weight.linear.row_bytes
        weight.linear.bias = NULL
        weight.linear.scale = 1.0
        weight.linear.bias_first = False
        weight.owner = self.file.raw(name)
        weight.name = name
        return weight


def similar(tensors, name):
    """A hint that names tensors of the same layer, for a file with other names than expected."""
    prefix = name.rsplit(".", 2)[0] + "."
    near = [t for t in tensors if t.startswith(prefix)][:8] if name.count(".") > 1 else []
    return f" (this layer has {', '.join(map(escaped, near))})" if near else ""
