"""IQ2_XXS: 256 weights in 66 bytes, groups of 8 taken from a grid of 256 points, signs with even parity.

  offset  bytes  field
       0      2  d     fp16
       2     64  8 x (4 grid indices of 8 bits; u32: 4 x 7 sign bits, the top 4 bits a scale k)

  weight = d * (0.5 + k) / 4 * grid[index] * sign;  the eighth sign of a group makes their parity even.

Source: gguf.quants.IQ2_XXS, which also holds the grid.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from gguf import GGMLQuantizationType, quants

from .blocks import fp16_bytes, fp16_round, quantizer
from .search import TINY

N_SCALE = 16
# Scales k of the file in units of d.
STEPS = (np.arange(N_SCALE, dtype=np.float32) + np.float32(0.5)) * np.float32(0.25)
# Trials for a sub-block's scale, as fractions of its largest weight over the grid's largest value.
# On Gaussian weights the best scale lies within these bounds for all but 1 in 1000 sub-blocks.
TRIALS = np.linspace(0.72, 1.5, 9, dtype=np.float32)
ROUNDS = 2


@lru_cache(None)
def grid() -> np.ndarray:
    """float32 (256, 8): the points, values 8, 25 and 43."""
    quants.IQ2_XXS.init_grid()
    return np.ascontiguousarray(quants.IQ2_XXS.grid.reshape(256, 8), np.float32)


@lru_cache(None)
def _grid_and_squares() -> np.ndarray:
    """float32 (16, 256): the points above, their squares below, as the right side of one product."""
    return np.ascontiguousarray(np.concatenate([grid(), grid() ** 2], 1).T)


def _even_signs(x: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Choose signs of even parity.

    x, w : float32 (N, 8)
    Returns x with the signs taken off, float32 (N, 8) (the one weight that got the wrong sign is
    negative), and the sign bits, uint8 (N,).

    A wrong sign costs 4 * w * |x| * (scale * grid), so the weight with the least w * |x| is flipped.
    """
    negative = x < 0
    odd = negative.sum(1) & 1 == 1
    weakest = (w * np.abs(x)).argmin(1)
    negative[odd, weakest[odd]] ^= True
    return np.where(negative, -x, x), np.packbits(negative, axis=1, bitorder="little")[:, 0]


def _nearest(wx: np.ndarray, w: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Index of the grid point g with the least sum(w * (x - scale * g) ** 2).

    wx, w : float32 (N, 8); scale : float32 (N,), > 0
    """
    s = scale[:, None]
    # -(s g)^2 w + 2 s g w x, divided by 2 s: the same order, and one matrix product does it.
    left = np.concatenate([wx, w * (-0.5 * s)], 1)
    return (left @ _grid_and_squares()).argmax(1)


def _products(wx, w, index) -> tuple[np.ndarray, np.ndarray]:
    """(sum(w x g), sum(w g g)) a sub-block, float32 (N / 4,) each."""
    g = grid()[index]
    return (wx * g).reshape(-1, 32).sum(1), (w * g * g).reshape(-1, 32).sum(1)


def _search_scales(x, wx, w) -> np.ndarray:
    """Best free scale of each sub-block, float32 (S,); x, wx, w : float32 (4 S, 8)."""
    top = np.maximum(x.reshape(-1, 32).max(1), 0) / 43
    best_gain = np.zeros(len(top), np.float32)
    best = np.zeros(len(top), np.float32)
    for trial in TRIALS:
        scale = np.maximum(top * trial, TINY)
        dot, norm = _products(wx, w, _nearest(wx, w, np.repeat(scale, 4)))
        gain = np.where(dot > 0, dot * dot / (norm + TINY), 0)
        better = gain > best_gain
        best_gain = np.where(better, gain, best_gain)
        best = np.where(better, dot / (norm + TINY), best)
    return best


def _choose_steps(x, wx, w, d, wanted):
    """Choose k and grid points of each sub-block for a given d: of the steps next to `wanted` the best.

    d, wanted : float32 (S,)
    Returns k int (S,), index int (4 S,), and the products of the choice, float32 (S,) each.
    """
    nearest = np.rint(wanted / np.maximum(d, TINY) * 4 - 0.5)
    least = np.full(len(d), np.inf, np.float32)
    k = np.zeros(len(d), np.int64)
    index = np.zeros((len(d), 4), np.int64)
    dot, norm = np.zeros_like(d), np.zeros_like(d)
    for step in (0, -1, 1):
        trial = np.clip(nearest + step, 0, N_SCALE - 1).astype(np.int64)
        scale = d * STEPS[trial]
        points = _nearest(wx, w, np.repeat(np.maximum(scale, TINY), 4))
        new_dot, new_norm = _products(wx, w, points)
        error = scale * scale * new_norm - 2 * scale * new_dot
        better = error < least
        least = np.where(better, error, least)
        k, dot, norm = (np.where(better, a, b) for a, b in ((trial, k), (new_dot, dot), (new_norm, norm)))
        index[better] = points.reshape(-1, 4)[better]
    return k, index.reshape(-1), dot, norm


@quantizer(GGMLQuantizationType.IQ2_XXS)
def quantize_iq2_xxs(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """float32 (N, 256) twice -> uint8 (N, 66), layout above."""
    n_blocks = len(x)
    # One size for the products below: errors are relative to the block, TINY stays tiny.
    w = w / np.maximum(w.mean(1, keepdims=True), TINY)
    x8, w8 = x.reshape(-1, 8), w.reshape(-1, 8)
    unsigned, signs = _even_signs(x8, w8)
    wx = w8 * unsigned
    wanted = _search_scales(unsigned, wx, w8)
    d = fp16_round(wanted.reshape(n_blocks, 8).max(1) / STEPS[-1])
    for last in (False,) * ROUNDS + (True,):
        k, index, dot, norm = _choose_steps(unsigned, wx, w8, np.repeat(d, 8), wanted)
        if not last:
            steps = STEPS[k].reshape(n_blocks, 8)
            explained = (steps * dot.reshape(n_blocks, 8)).sum(1)
            size = (steps * steps * norm.reshape(n_blocks, 8)).sum(1)
            d = fp16_round(np.maximum(explained / (size + TINY), 0))
    word = (k.astype(np.uint32) << 28).reshape(-1)
    for i, seven in enumerate((signs.reshape(-1, 4) & 127).astype(np.uint32).T):
        word |= seven << np.uint32(7 * i)
    points = index.astype(np.uint8).reshape(-1, 4)
    body = np.concatenate([points, word.astype("<u4").view(np.uint8).reshape(-1, 4)], 1)
    return np.concatenate([fp16_bytes(d), body.reshape(n_blocks, 64)], 1)
