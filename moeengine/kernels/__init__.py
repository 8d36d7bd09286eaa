"""Public kernels: dequantize, mul_mat, mul_mat_id on NumPy arrays; the choice of instruction set.

Arguments are checked here; the modules below trust them. Weights are raw bytes as they lie in a
GGUF file; they are read in place, at any alignment, and never copied.
"""

from __future__ import annotations

import operator
import os

import numpy as np

from ..errors import ConfigError, UnsupportedError
from . import mul_mat_id as _mul_mat_id
from . import products as _products
from .table import isa, quant_types, set_isa
from .threads import Team

__all__ = ["dequantize", "isa", "mul_mat", "mul_mat_id", "quant_types", "set_isa"]

_TYPES = quant_types()  # name -> (id, weights a block, bytes a block)
_NAMES = {type_id: name for name, (type_id, _, _) in _TYPES.items()}


def _type_of(qtype) -> tuple[str, int, int, int]:
    """Name, id, weights a block and bytes a block of a gguf.GGMLQuantizationType or a name."""
    name = qtype
    if not isinstance(qtype, str):
        try:
            name = _NAMES.get(operator.index(qtype), getattr(qtype, "name", qtype))
        except TypeError:
            raise ConfigError(
                f"qtype: found {qtype!r}, expected a gguf.GGMLQuantizationType or its name"
            ) from None
    if name not in _TYPES:
        raise UnsupportedError(f"quant type: found {name}, expected one of {', '.join(_TYPES)}")
    return (name, *_TYPES[name])


def _array(name: str, array, dtype, ndims: tuple[int, ...]) -> np.ndarray:
    """`array` if it is an ndarray of this type and one of these numbers of axes."""
    if not isinstance(array, np.ndarray) or array.dtype != dtype or array.ndim not in ndims:
        found = (
            f"{array.dtype} {array.shape}"
            if isinstance(array, np.ndarray)
            else type(array).__name__
        )
        axes = " or ".join(str(n) for n in ndims)
        raise ConfigError(
            f"{name}: found {found}, expected a NumPy array of {np.dtype(dtype)} with {axes} axes"
        )
    return array


def _weights(raw, ndims: tuple[int, ...], qtype) -> tuple[np.ndarray, int, int]:
    """raw checked: the array, the ggml type id, weights a row."""
    name, type_id, block, n_bytes = _type_of(qtype)
    raw = _array("raw", raw, np.uint8, ndims)
    if raw.shape[-1] % n_bytes:
        raise ConfigError(
            f"raw: found {raw.shape[-1]} bytes a row, "
            f"expected a multiple of {n_bytes}, the bytes a block of {name}"
        )
    rows_apart = raw.ndim == 1 or raw.shape[-2] < 2 or raw.strides[-2] >= raw.shape[-1]
    if raw.size and (
        (raw.shape[-1] > 1 and raw.strides[-1] != 1) or not rows_apart or min(raw.strides) < 0
    ):
        raise ConfigError(
            "raw: found a row whose bytes are not contiguous, expected rows as they lie in a file"
        )
    return raw, type_id, raw.shape[-1] // n_bytes * block


def _team(n_threads: int | None) -> Team:
    if n_threads is None:
        n_threads = (
            len(os.sched_getaffinity(0))
            if hasattr(os, "sched_getaffinity")
            else os.cpu_count() or 1
        )
    try:
        n_threads = operator.index(n_threads)
    except TypeError:
        n_threads = -1
    if not 1 <= n_threads <= 1024:
        raise ConfigError(f"n_threads: found {n_threads}, expected a whole number, 1 to 1024")
    return Team(n_threads)


def dequantize(raw: np.ndarray, qtype) -> np.ndarray:
    """Turn quantized weights into float32.

    Parameters
    ----------
    raw : uint8 (..., bytes)    rows of whole blocks
    qtype : gguf.GGMLQuantizationType or its name

    Returns
    -------
    float32 (..., C)    the values that gguf.quants gives

    Raises
    ------
    ConfigError         wrong dtype, or a row that is no whole number of blocks
    UnsupportedError    unknown quant type, or MOEENGINE_ISA cannot be had
    """
    ndim = raw.ndim if isinstance(raw, np.ndarray) else 1
    raw, type_id, n_in = _weights(raw, (max(ndim, 1),), qtype)
    out = np.empty((*raw.shape[:-1], n_in), np.float32)
    flat = raw.reshape(int(np.prod(raw.shape[:-1])), raw.shape[-1])
    _products.dequantize_rows(flat, type_id, out.reshape(flat.shape[0], n_in))
    return out


def mul_mat(raw: np.ndarray, qtype, x: np.ndarray, n_threads: int | None = None) -> np.ndarray:
    """Multiply activation rows with a quantized matrix: out[t] = W @ x[t].

    Parameters
    ----------
    raw : uint8 (R, bytes)    R rows of whole blocks
    qtype : gguf.GGMLQuantizationType or its name
    x : float32 (T, C)        quantized as llama.cpp does for this weight type
    n_threads : int           None: as many as this process may run on

    Returns
    -------
    float32 (T, R)    the same bytes for every n_threads and every split of x into calls

    Raises
    ------
    ConfigError         wrong dtype, shape or n_threads
    UnsupportedError    unknown quant type, or MOEENGINE_ISA cannot be had
    """
    raw, type_id, n_in = _weights(raw, (2,), qtype)
    x = _array("x", x, np.float32, (2,))
    if x.shape[1] != n_in:
        raise ConfigError(
            f"x: found {x.shape[1]} values a row, expected {n_in}, the weights of a row of raw"
        )
    out = np.empty((x.shape[0], raw.shape[0]), np.float32)
    _products.mul_mat_rows(raw, type_id, np.ascontiguousarray(x), out, _team(n_threads))
    return out


def mul_mat_id(
    raw: np.ndarray,
    qtype,
    x: np.ndarray,
    ids: np.ndarray,
    n_threads: int | None = None,
    *,
    hooks=None,
) -> np.ndarray:
    """Multiply each (token, slot) with the matrix of its expert.

    out[t, s] = W[ids[t, s]] @ x[t, s or 0].

    Experts are visited in ascending order; the bytes of others are not touched.

    Parameters
    ----------
    raw : uint8 (X, R, bytes)    a bank of X experts
    qtype : gguf.GGMLQuantizationType or its name
    x : float32 (T, C) or (T, A, C)
    ids : int32 (T, A)           expert of a slot, or -1: not active, its output is zero
    n_threads : int              None: as many as this process may run on
    hooks                        None, or what moeengine.kernels.mul_mat_id.callable_hooks returns

    Returns
    -------
    float32 (T, A, R)    the same bytes for every n_threads and every split of the tokens into calls

    Raises
    ------
    ConfigError         wrong dtype or shape, or an id outside -1 .. X-1; nothing was read then
    UnsupportedError    unknown quant type, or MOEENGINE_ISA cannot be had
    SupplyError         a hook could not bring in the bytes of an expert
    """
    raw, type_id, n_in = _weights(raw, (3,), qtype)
    x = _array("x", x, np.float32, (2, 3))
    ids = _array("ids", ids, np.int32, (2,))
    n_expert, n_rows = raw.shape[:2]
    if (
        x.shape[0] != ids.shape[0]
        or x.shape[-1] != n_in
        or (x.ndim == 3 and x.shape[1] != ids.shape[1])
    ):
        (n_tokens, n_used) = ids.shape
        raise ConfigError(
            f"x: found {x.shape}, expected ({n_tokens}, {n_in}) or ({n_tokens}, {n_used}, {n_in}) "
            "from ids and raw"
        )
    if ids.size >= 2**31:
        raise ConfigError(f"ids: found {ids.size} slots, expected fewer than 2**31")
    if ids.size and not (ids.min() >= -1 and ids.max() < n_expert):
        t, s = np.argwhere((ids < -1) | (ids >= n_expert))[0]
        raise ConfigError(
            f"ids[{t}, {s}]: found {ids[t, s]}, expected -1 or an expert from 0 to {n_expert - 1}"
        )
    out = np.empty((*ids.shape, n_rows), np.float32)
    _mul_mat_id.mul_mat_id_rows(
        raw,
        type_id,
        np.ascontiguousarray(x).reshape(-1, n_in) if x.size else np.empty((0, n_in), np.float32),
        np.ascontiguousarray(ids).ravel(),
        out.reshape(-1, n_rows) if out.size else np.empty((0, n_rows), np.float32),
        _team(n_threads),
        hooks,
    )
    return out
