"""Searches for scales: what all formats with evenly spaced levels share."""

from __future__ import annotations

import numpy as np

TINY = np.float32(1e-30)


def fit_scale(x: np.ndarray, w: np.ndarray, low: int, high: int, candidates: np.ndarray) -> np.ndarray:
    """Find the scale s that minimises sum(w * (x - s * round(x / s)) ** 2).

    Parameters
    ----------
    x, w : float32 (..., n)         weights of one group and their importance
    low, high : int                 the levels; the largest |x| is tried at `low` or near it
    candidates : float32 (k,)       where the largest |x| may land, in levels

    Returns
    -------
    scale : float32 (...)           0 for a group of zeros; negative where the extreme is positive

    After rounding with a trial scale the best scale for those levels is known in closed form
    (weighted least squares); the trial with the largest explained part wins.
    """
    at = np.abs(x).argmax(-1)[..., None]
    extreme = np.take_along_axis(x, at, -1)[..., 0]
    best_gain = np.zeros(extreme.shape, np.float32)
    best = np.zeros(extreme.shape, np.float32)
    safe = np.where(extreme == 0, np.float32(1), extreme)
    wx = w * x
    for level in candidates:
        inverse = (level / safe)[..., None]
        q = np.clip(np.rint(x * inverse), low, high)
        dot, norm = (wx * q).sum(-1), (w * q * q).sum(-1)
        gain = dot * dot / (norm + TINY)
        better = gain > best_gain
        best_gain = np.where(better, gain, best_gain)
        best = np.where(better, dot / (norm + TINY), best)
    return best


def fit_scale_min(x: np.ndarray, w: np.ndarray, high: int, candidates: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Find scale s >= 0 and minimum m >= 0 that minimise sum(w * (x - (s * q - m)) ** 2), q in 0..high.

    Parameters
    ----------
    x, w : float32 (..., n)
    high : int                      the largest level
    candidates : float32 (k,)       how many levels the range of x is spread over

    Returns
    -------
    scale, minimum : float32 (...)
    """
    bottom, top = np.minimum(x.min(-1), 0), x.max(-1)
    spread = np.maximum(top - bottom, TINY)
    sw, swx, swxx = w.sum(-1), (w * x).sum(-1), (w * x * x).sum(-1)
    best = np.full(bottom.shape, np.inf, np.float32)
    scale, minimum = np.zeros_like(best), np.zeros_like(best)
    for levels in candidates:
        q = np.clip(np.rint((x - bottom[..., None]) * (levels / spread)[..., None]), 0, high)
        wq = w * q
        swq, swqq, swqx = wq.sum(-1), (wq * q).sum(-1), (wq * x).sum(-1)
        determinant = sw * swqq - swq * swq
        s = (sw * swqx - swq * swx) / np.where(determinant > 0, determinant, np.float32(1))
        m = (swq * s - swx) / np.maximum(sw, TINY)
        # The file cannot hold a minimum above zero: fit the scale alone there.
        alone = (determinant <= 0) | (m < 0) | (s < 0)
        s = np.where(alone, np.maximum(swqx / (swqq + TINY), 0), s)
        m = np.where(alone, np.float32(0), m)
        error = swxx + s * s * swqq + m * m * sw - 2 * s * swqx + 2 * m * swx - 2 * s * m * swq
        better = error < best
        best = np.where(better, error, best)
        scale, minimum = np.where(better, s, scale), np.where(better, m, minimum)
    return scale, minimum
