"""The table of quantizers and the loop that feeds them; the arithmetic of a type is in its own file.

A quantizer takes whole blocks and an importance for every weight, and returns the bytes of the blocks.
It minimises `sum(importance * (weight - rounded)**2)`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from threadpoolctl import threadpool_limits

from moeengine.errors import ConfigError, NumericError, UnsupportedError

# Weights in one call of a quantizer: large enough to hide NumPy's overhead, small enough that the
# working set of the widest search (some 40 float32 a weight) stays near the caches.
CHUNK_WEIGHTS = 1 << 16

BlockQuantizer = Callable[[np.ndarray, np.ndarray], np.ndarray]
_QUANTIZERS: dict[GGMLQuantizationType, BlockQuantizer] = {}


def quantizer(qtype: GGMLQuantizationType) -> Callable[[BlockQuantizer], BlockQuantizer]:
    """Register a function (x float32 (N, block), importance float32 (N, block)) -> uint8 (N, bytes)."""

    def register(function: BlockQuantizer) -> BlockQuantizer:
        assert qtype not in _QUANTIZERS, qtype.name
        _QUANTIZERS[qtype] = function
        return function

    return register


def available() -> list[GGMLQuantizationType]:
    """List the types that `quantize` can write, coarsest bytes first."""
    types = [*_QUANTIZERS, *_FLOATS]
    return sorted(types, key=lambda q: GGML_QUANT_SIZES[q][1] / GGML_QUANT_SIZES[q][0])


def quant_type(name: str | GGMLQuantizationType) -> GGMLQuantizationType:
    """Look a writable type up by name, any case.

    Raises
    ------
    UnsupportedError             not a type that `quantize` writes; lists those
    """
    qtype = GGMLQuantizationType.__members__.get(str(name).upper()) if isinstance(name, str) else name
    if qtype not in available():
        names = ", ".join(q.name.lower() for q in available())
        raise UnsupportedError(f"quant type {name}: cannot be written; writable types are {names}")
    return qtype


def quantize(x: np.ndarray, qtype: str | GGMLQuantizationType, *, importance: np.ndarray | None = None) -> np.ndarray:
    """Round rows of weights to a quant type.

    Parameters
    ----------
    x : float32 (..., C)            finite
    qtype : name or type            one of `available()`
    importance : float32, broadcast against x, or None
        how much an error of each weight counts: the mean square of the activation it is
        multiplied with; None = all alike

    Returns
    -------
    raw : uint8 (..., row_bytes)    as the GGUF file holds it

    Raises
    ------
    UnsupportedError                type cannot be written
    ConfigError                     C is no multiple of the block; importance negative, not finite,
                                    or of a shape that does not broadcast
    NumericError                    x holds NaN or infinity
    """
    qtype = quant_type(qtype)
    x = np.asarray(x, dtype=np.float32)
    n_block, n_bytes = GGML_QUANT_SIZES[qtype]
    if x.shape[-1] % n_block:
        raise ConfigError(f"{qtype.name}: rows of {x.shape[-1]} weights, expected a multiple of {n_block}")
    weights = _importance_rows(importance, x.shape)
    rows = x.reshape(-1, x.shape[-1])
    out = np.empty((len(rows), x.shape[-1] // n_block * n_bytes), np.uint8)
    step = max(1, CHUNK_WEIGHTS // max(1, x.shape[-1]))
    # The products are too narrow for a second BLAS thread: it only spins (7 times slower).
    with threadpool_limits(1, user_api="blas"):
        for first in range(0, len(rows), step):
            part = rows[first : first + step]
            if not np.isfinite(part).all():
                raise NumericError(f"{qtype.name}: weights of row {first} or after are not finite")
            out[first : first + step] = _quantize_rows(part, weights(first, first + step), qtype)
    return out.reshape(*x.shape[:-1], -1)


def _quantize_rows(x: np.ndarray, importance: np.ndarray, qtype: GGMLQuantizationType) -> np.ndarray:
    if qtype in _FLOATS:
        return _FLOATS[qtype](x)
    n_block = GGML_QUANT_SIZES[qtype][0]
    blocks = _QUANTIZERS[qtype](x.reshape(-1, n_block), importance.reshape(-1, n_block))
    assert blocks.dtype == np.uint8 and blocks.shape[1] == GGML_QUANT_SIZES[qtype][1]
    return blocks.reshape(len(x), -1)


def _importance_rows(importance, shape) -> Callable[[int, int], np.ndarray]:
    """Give a function (first, last) -> float32 rows; nothing the size of x is made."""
    n_rows, n_columns = int(np.prod(shape[:-1])), shape[-1]
    if importance is None:
        return lambda a, b: np.ones((min(b, n_rows) - a, n_columns), np.float32)
    importance = np.asarray(importance, np.float32)
    if not (np.isfinite(importance).all() and (importance >= 0).all()):
        raise ConfigError("importance: found a negative or non-finite value, expected none")
    try:
        wide = np.broadcast_to(importance, shape)
    except ValueError:
        raise ConfigError(f"importance of shape {importance.shape} does not broadcast to {tuple(shape)}") from None

    def rows(first: int, last: int) -> np.ndarray:
        index = np.unravel_index(np.arange(first, min(last, n_rows)), shape[:-1] or (1,))
        part = wide[index] if len(shape) > 1 else wide[None]
        # A row that no activation ever reached still has to be rounded sensibly.
        floor = 1e-6 * part.mean(-1, keepdims=True)
        return np.where(part.any(-1, keepdims=True), part + floor, np.float32(1))

    return rows


def fp16_bytes(x: np.ndarray) -> np.ndarray:
    """float32 (N,) or (N, n) -> uint8 (N, 2 n), each rounded to fp16."""
    return x.reshape(len(x), -1).astype("<f2").view(np.uint8)


def fp16_round(x: np.ndarray) -> np.ndarray:
    """Round to fp16 and back, within its range, as the file will hold the value."""
    return np.clip(x, -65504, 65504).astype(np.float16).astype(np.float32)


def _bf16_bytes(x: np.ndarray) -> np.ndarray:
    bits = np.ascontiguousarray(x).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return rounded.astype("<u2").view(np.uint8)


_FLOATS: dict[GGMLQuantizationType, Callable[[np.ndarray], np.ndarray]] = {
    GGMLQuantizationType.F32: lambda x: np.ascontiguousarray(x, "<f4").view(np.uint8),
    GGMLQuantizationType.F16: lambda x: fp16_round(x).astype("<f2").view(np.uint8),
    GGMLQuantizationType.BF16: _bf16_bytes,
}
