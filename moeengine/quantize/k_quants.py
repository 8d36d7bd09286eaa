"""Types of 256 weights with two levels of scales: Q2_K, Q3_K, Q4_K, Q5_K, Q6_K.

All go the same way: fit every group alone, express the group scales in steps of one fp16 scale,
then, with what the file can really hold, round the weights and fit the fp16 scale once more.
"""

from __future__ import annotations

import numpy as np
from gguf import GGMLQuantizationType

from .blocks import fp16_bytes, fp16_round, quantizer
from .search import TINY, fit_scale, fit_scale_min

ROUNDS = 2  # times the fp16 scales are fitted again; the third gains under 0.1 % of the error


def _inverse(scale: np.ndarray) -> np.ndarray:
    return np.divide(1, scale, out=np.zeros_like(scale), where=scale != 0)


def _symmetric(x, w, group: int, low: int, high: int, candidates, scale_limit: int):
    """Fit x ~ d * scale[g] * q.

    x, w : float32 (N, 256); q in low..high; scale int in -scale_limit..scale_limit - 1
    Returns d float32 (N,) as fp16 holds it, scale float32 (N, G), q float32 (N, 256).
    """
    x, w = x.reshape(len(x), -1, group), w.reshape(len(x), -1, group)
    wanted = fit_scale(x, w, low, high, candidates)
    at = np.abs(wanted).argmax(1)[:, None]
    d = fp16_round(np.take_along_axis(wanted, at, 1)[:, 0] / -scale_limit)
    scale = np.clip(np.rint(wanted * _inverse(d)[:, None]), -scale_limit, scale_limit - 1)
    for last in (False,) * ROUNDS + (True,):
        q = np.clip(np.rint(x * _inverse(d[:, None] * scale)[..., None]), low, high)
        if not last:
            model = scale[..., None] * q
            fitted = (w * x * model).sum((1, 2)) / ((w * model * model).sum((1, 2)) + TINY)
            d = fp16_round(fitted)
    return d, scale, q.reshape(len(x), -1)


def _with_minimum(x, w, group: int, high: int, candidates, scale_limit: int):
    """Fit x ~ d * scale[g] * q - dmin * minimum[g].

    x, w : float32 (N, 256); q in 0..high; scale and minimum int in 0..scale_limit
    Returns d, dmin float32 (N,) as fp16 holds them, scale, minimum float32 (N, G), q float32 (N, 256).
    """
    x, w = x.reshape(len(x), -1, group), w.reshape(len(x), -1, group)
    s, m = fit_scale_min(x, w, high, candidates)
    d, dmin = fp16_round(s.max(1) / scale_limit), fp16_round(m.max(1) / scale_limit)
    scale = np.clip(np.rint(s * _inverse(d)[:, None]), 0, scale_limit)
    minimum = np.clip(np.rint(m * _inverse(dmin)[:, None]), 0, scale_limit)
    for last in (False,) * ROUNDS + (True,):
        scale, minimum = _nudge(x, w, d, dmin, scale, minimum, high, scale_limit)
        q = _round_levels(x, d[:, None] * scale, dmin[:, None] * minimum, high)
        if not last:
            d, dmin = _fit_pair(x, w, scale[..., None] * q, minimum[..., None], d, dmin)
    return d, dmin, scale, minimum, q.reshape(len(x), -1)


def _round_levels(x, s, m, high: int) -> np.ndarray:
    return np.clip(np.rint((x + m[..., None]) * _inverse(s)[..., None]), 0, high)


def _nudge(x, w, d, dmin, scale, minimum, high: int, scale_limit: int):
    """Try the neighbours of each group's scale and minimum with the weights rounded anew; keep the best."""
    best = np.full(scale.shape, np.inf, np.float32)
    chosen = scale, minimum
    for ds in (0, -1, 1):
        for dm in (0, -1, 1):
            s, m = np.clip(scale + ds, 0, scale_limit), np.clip(minimum + dm, 0, scale_limit)
            real_s, real_m = d[:, None] * s, dmin[:, None] * m
            q = _round_levels(x, real_s, real_m, high)
            off = x - (real_s[..., None] * q - real_m[..., None])
            error = (w * off * off).sum(-1)
            better = error < best
            best = np.where(better, error, best)
            chosen = np.where(better, s, chosen[0]), np.where(better, m, chosen[1])
    return chosen


def _fit_pair(x, w, a, b, d, dmin):
    """Fit d and dmin of x ~ d * a - dmin * b a block, (N, G, n) each; kept where there is nothing to fit."""
    aa, bb, ab = (w * a * a).sum((1, 2)), (w * b * b).sum((1, 2)), (w * a * b).sum((1, 2))
    ax, bx = (w * a * x).sum((1, 2)), (w * b * x).sum((1, 2))
    determinant = aa * bb - ab * ab
    sound = determinant > 1e-6 * aa * bb
    safe = np.where(sound, determinant, np.float32(1))
    new_d, new_dmin = (bb * ax - ab * bx) / safe, (ab * ax - aa * bx) / safe
    sound &= (new_d > 0) & (new_dmin >= 0)
    alone = np.where(bb == 0, ax / (aa + TINY), d)  # no group has a minimum
    return fp16_round(np.where(sound, new_d, alone)), fp16_round(np.where(sound, new_dmin, dmin))


def _pack_bits(q: np.ndarray, span: int, bits: int) -> np.ndarray:
    """uint8 (N, 256) -> (N, 256 * bits / 8): of each `span * 8 / bits` weights, byte i holds i, i + span, ..."""
    per_byte = 8 // bits
    q = q.reshape(len(q), -1, per_byte, span)
    shifts = (np.arange(per_byte) * bits)[:, None].astype(np.uint8)
    return np.bitwise_or.reduce(q << shifts, axis=2).reshape(len(q), -1)


def _pack_scales_6bit(scale: np.ndarray, minimum: np.ndarray) -> np.ndarray:
    """Two float32 (N, 8) in 0..63 -> uint8 (N, 12): low six bits of the first four each, then the
    low nibbles of the last four with their top two bits in the first eight bytes' spare ones."""
    s, m = scale.astype(np.uint8), minimum.astype(np.uint8)
    first = s[:, :4] | (s[:, 4:] >> 4) << 6
    second = m[:, :4] | (m[:, 4:] >> 4) << 6
    return np.concatenate([first, second, s[:, 4:] & 15 | (m[:, 4:] & 15) << 4], 1)


@quantizer(GGMLQuantizationType.Q4_K)
def quantize_q4_k(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """float32 (N, 256) twice -> uint8 (N, 144): d, dmin, 8 pairs of 6 bits, nibbles."""
    candidates = np.linspace(13.5, 16.5, 13, dtype=np.float32)
    d, dmin, scale, minimum, q = _with_minimum(x, w, 32, 15, candidates, 63)
    parts = [fp16_bytes(d), fp16_bytes(dmin), _pack_scales_6bit(scale, minimum)]
    return np.concatenate([*parts, _pack_bits(q.astype(np.uint8), 32, 4)], 1)


@quantizer(GGMLQuantizationType.Q5_K)
def quantize_q5_k(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """float32 (N, 256) twice -> uint8 (N, 176): as Q4_K, the fifth bits between scales and nibbles."""
    candidates = np.linspace(29.5, 32, 9, dtype=np.float32)
    d, dmin, scale, minimum, q = _with_minimum(x, w, 32, 31, candidates, 63)
    q = q.astype(np.uint8)
    parts = [fp16_bytes(d), fp16_bytes(dmin), _pack_scales_6bit(scale, minimum)]
    parts += [_pack_bits(q >> 4, 32, 1), _pack_bits(q & 15, 32, 4)]
    return np.concatenate(parts, 1)


@quantizer(GGMLQuantizationType.Q2_K)
def quantize_q2_k(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """float32 (N, 256) twice -> uint8 (N, 84): 16 x (4-bit scale, 4-bit minimum), 2-bit levels, d, dmin."""
    candidates = np.linspace(2.2, 4.0, 19, dtype=np.float32)
    d, dmin, scale, minimum, q = _with_minimum(x, w, 16, 3, candidates, 15)
    scales = scale.astype(np.uint8) | minimum.astype(np.uint8) << 4
    levels = _pack_bits(q.astype(np.uint8), 32, 2)
    return np.concatenate([scales, levels, fp16_bytes(d), fp16_bytes(dmin)], 1)


@quantizer(GGMLQuantizationType.Q6_K)
def quantize_q6_k(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """float32 (N, 256) twice -> uint8 (N, 210): low nibbles, high 2 bits, 16 int8 scales, d."""
    candidates = np.linspace(-33, -30, 13, dtype=np.float32)
    d, scale, q = _symmetric(x, w, 16, -32, 31, candidates, 128)
    q = (q + 32).astype(np.uint8)
    low, high = _pack_bits(q & 15, 64, 4), _pack_bits(q >> 4, 32, 2)
    return np.concatenate([low, high, scale.astype(np.int8).view(np.uint8), fp16_bytes(d)], 1)


@quantizer(GGMLQuantizationType.Q3_K)
def quantize_q3_k(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """float32 (N, 256) twice -> uint8 (N, 110): high bits, low 2 bits, 16 6-bit scales + 32, d."""
    candidates = np.linspace(-4.9, -3.0, 16, dtype=np.float32)
    d, scale, q = _symmetric(x, w, 16, -4, 3, candidates, 32)
    q, s = (q + 4).astype(np.uint8), (scale + 32).astype(np.uint8)
    nibbles = s[:, :8] & 15 | (s[:, 8:] & 15) << 4
    top = s >> 4
    tops = top[:, 0:4] | top[:, 4:8] << 2 | top[:, 8:12] << 4 | top[:, 12:16] << 6
    parts = [_pack_bits(q >> 2, 32, 1), _pack_bits(q & 3, 32, 2), nibbles, tops, fp16_bytes(d)]
    return np.concatenate(parts, 1)
