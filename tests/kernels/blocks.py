"""Raw blocks of every weight type for the kernel tests; activations quantized in plain NumPy."""

import numpy as np

from moeengine import kernels

TYPES = kernels.quant_types()  # name -> (id, weights a block, bytes a block)
FLOATS = ("F32", "F16", "BF16")
# byte offsets of the fp16 fields of a block; the others have scales of another kind
HALVES = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q2_K": (80, 82),
    "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ1_S": (0,), "IQ1_M": (),
    "IQ2_XXS": (0,), "IQ2_XS": (0,), "IQ2_S": (0,), "IQ3_XXS": (0,), "IQ3_S": (0,),
    "IQ4_NL": (0,), "IQ4_XS": (0,), "MXFP4": (), "NVFP4": (),
    "TQ1_0": (52,), "TQ2_0": (64,),
}  # fmt: skip


def set_halves(raw, name, values):
    """Write fp16 `values` (N) into the scale fields of raw blocks uint8 (N, bytes)."""
    half = np.asarray(values, np.float16)
    for at in HALVES[name]:
        raw[:, at : at + 2] = half.view(np.uint8).reshape(-1, 2)
    if name == "IQ1_M":  # four bits of d on top of each of the last four words
        words = raw[:, 48:56].copy().view(np.uint16) & 0x0FFF
        bits = half.view(np.uint16)
        for i in range(4):
            words[:, i] |= (bits >> 4 * i & 15) << 12
        raw[:, 48:56] = words.view(np.uint8)
    if name == "MXFP4":
        raw[:, 0] = 110 + raw[:, 0] % 16  # 2^-18 .. 2^-3


def random_raw(rng, name, shape, n_in):
    """uint8 (*shape, row bytes): random codes, finite scales of both signs."""
    _, block, n_bytes = TYPES[name]
    n_blocks = int(np.prod(shape)) * n_in // block
    if name in FLOATS:
        w = rng.standard_normal(n_blocks, np.float32)
        raw = {"F32": w, "F16": w.astype(np.float16), "BF16": w.view(np.uint32) >> 16}[name]
        raw = (raw.astype(np.uint16) if name == "BF16" else raw).view(np.uint8)
    else:
        raw = rng.integers(0, 256, (n_blocks, n_bytes), dtype=np.uint8)
        set_halves(raw, name, rng.uniform(0.2, 2.0, n_blocks) * rng.choice([-0.01, 0.01], n_blocks))
    return raw.reshape(*shape, n_in // block * n_bytes)


def uses_q8_K(name):
    return TYPES[name][1] == 256


def quantized_activations(name, x):
    """What the kernels multiply with, float64 (T, C): integers times scale as llama.cpp makes them,
    and for types with a min the block sums (T, C/32) that the min is multiplied with."""
    x = np.asarray(x, np.float32)
    if name in FLOATS:
        if name == "F16":
            x = x.astype(np.float16)
        if name == "BF16":
            bits = x.view(np.uint32).astype(np.uint64)
            x = ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)
        return x.astype(np.float64), None
    size = 256 if uses_q8_K(name) else 32
    blocks = x.reshape(x.shape[0], -1, size)
    at = np.abs(blocks).argmax(-1)[..., None]
    peak = np.take_along_axis(blocks, at, -1)
    with np.errstate(divide="ignore", invalid="ignore"):
        if size == 256:
            inverse = np.float32(-127) / peak
            q = np.minimum(np.rint(inverse * blocks), 127)
            d = (np.float32(1) / inverse).astype(np.float64)
        else:
            q = np.rint(np.float32(127) / np.abs(peak) * blocks)
            d = np.abs(peak) / np.float32(127)
    q, d = np.where(peak == 0, 0, q), np.where(peak == 0, 0, d)
    if size == 256:
        return (q * d).reshape(x.shape), None
    sums = d.astype(np.float32)[..., 0] * q.sum(-1, dtype=np.float32)
    return (q * _rounded_to_half(d)).reshape(x.shape), _rounded_to_half(sums)


def _rounded_to_half(values):
    """float64: rounded to fp16, or as they are where that would be infinite."""
    with np.errstate(over="ignore"):
        half = np.asarray(values, np.float32).astype(np.float16)
    return np.where(np.isinf(half), values, half).astype(np.float64)
