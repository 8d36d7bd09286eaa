"""Types of 32 weights with one scale: Q8_0, Q5_0, Q4_0."""

from __future__ import annotations

import numpy as np
from gguf import GGMLQuantizationType

from .blocks import fp16_bytes, fp16_round, quantizer
from .search import fit_scale


def _levels(x, w, low: int, high: int, candidates) -> tuple[np.ndarray, np.ndarray]:
    """(scale as fp16 holds it, float32 (N,); levels float32 (N, 32))."""
    scale = fit_scale(x, w, low, high, candidates)
    if low == -high:  # the sign of the scale is free; readers expect it positive
        scale = np.abs(scale)
    scale = fp16_round(scale)
    inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale != 0)
    return scale, np.clip(np.rint(x * inverse[:, None]), low, high)


@quantizer(GGMLQuantizationType.Q8_0)
def quantize_q8_0(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """float32 (N, 32) twice -> uint8 (N, 34): fp16 scale, 32 int8."""
    scale, q = _levels(x, w, -127, 127, np.linspace(125, 127, 5, dtype=np.float32))
    return np.concatenate([fp16_bytes(scale), q.astype(np.int8).view(np.uint8)], 1)


@quantizer(GGMLQuantizationType.Q4_0)
def quantize_q4_0(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """float32 (N, 32) twice -> uint8 (N, 18): fp16 scale, nibbles (low: 0..15, high: 16..31) + 8."""
    scale, q = _levels(x, w, -8, 7, np.linspace(-9.2, -6.2, 16, dtype=np.float32))
    q = (q + 8).astype(np.uint8)
    return np.concatenate([fp16_bytes(scale), q[:, :16] | q[:, 16:] << 4], 1)


@quantizer(GGMLQuantizationType.Q5_0)
def quantize_q5_0(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """float32 (N, 32) twice -> uint8 (N, 22): fp16 scale, 32 fifth bits, nibbles as in Q4_0."""
    scale, q = _levels(x, w, -16, 15, np.linspace(-17.5, -14, 15, dtype=np.float32))
    q = (q + 16).astype(np.uint8)
    fifth = np.packbits(q >> 4, axis=1, bitorder="little")
    low = q & 15
    return np.concatenate([fp16_bytes(scale), fifth, low[:, :16] | low[:, 16:] << 4], 1)
