"""Rounding as one would first write it: scales from the extremes, every weight to the nearest level, no search."""

import gguf
import numpy as np

QType = gguf.GGMLQuantizationType
_SYMMETRIC = {QType.Q6_K: (16, 31, 127), QType.Q3_K: (16, 3, 31)}  # group, levels up, scale levels
_WITH_MINIMUM = {QType.Q4_K: (32, 15, 63), QType.Q5_K: (32, 31, 63), QType.Q2_K: (16, 3, 15)}


def plain(x, qtype):
    """float32 (R, C) -> what a plain quantizer of that format would store, float32 (R, C)."""
    if qtype in _SYMMETRIC:
        return _symmetric(x, *_SYMMETRIC[qtype])
    if qtype in _WITH_MINIMUM:
        return _with_minimum(x, *_WITH_MINIMUM[qtype])
    if qtype == QType.IQ2_XXS:
        return _nearest_on_grid(x)
    return gguf.quants.dequantize(gguf.quants.quantize(x, qtype), qtype)


def _symmetric(x, group, levels, scale_levels):
    g = x.reshape(-1, 256 // group, group)
    scale = np.abs(g).max(-1) / levels
    d = np.maximum(scale.max(1, keepdims=True), 1e-20) / scale_levels
    real = (d * np.rint(scale / d))[..., None]
    q = np.clip(np.rint(g / np.maximum(real, 1e-20)), -levels - 1, levels)
    return (real * q).reshape(x.shape)


def _with_minimum(x, group, levels, scale_levels):
    g = x.reshape(-1, 256 // group, group)
    low = np.maximum(-g.min(-1), 0)
    scale = (g.max(-1) + low) / levels
    d, dmin = (np.maximum(a.max(1, keepdims=True), 1e-20) / scale_levels for a in (scale, low))
    real, minimum = (d * np.rint(scale / d))[..., None], (dmin * np.rint(low / dmin))[..., None]
    q = np.clip(np.rint((g + minimum) / np.maximum(real, 1e-20)), 0, levels)
    return (real * q - minimum).reshape(x.shape)


def _nearest_on_grid(x):
    """The largest weight of a sub-block at the grid's largest value, the nearest point, the last sign forced."""
    gguf.quants.IQ2_XXS.init_grid()
    grid = gguf.quants.IQ2_XXS.grid.reshape(256, 8)
    g = x.reshape(-1, 8, 4, 8)
    d = np.maximum(np.abs(g).max((1, 2, 3)), 1e-20) / 43 / (15.5 / 4)
    k = np.clip(np.rint(np.abs(g).max((2, 3)) / 43 / d[:, None] * 4 - 0.5), 0, 15)
    scale = (d[:, None] * (k + 0.5) / 4)[..., None, None]
    distance = np.square(np.abs(g / scale)[..., None, :] - grid).sum(-1)
    sign = np.where(g < 0, -1.0, 1.0)
    sign[..., 7] = np.prod(sign[..., :7], -1)
    return (scale * grid[distance.argmin(-1)] * sign).reshape(x.shape)
