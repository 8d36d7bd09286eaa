"""Random weight tensors of any quant type, as raw GGUF bytes, for the tiny test models.

Types that the gguf package can quantize are quantized from normal numbers. For the others the blocks
are random bytes with the scale fields set to something sane, so every bit pattern of the codes occurs.
"""

import gguf
import numpy as np

QType = gguf.GGMLQuantizationType

# (byte offset, factor) of the fp16 scale fields in a block; the source is the dequantizer of the gguf
# package. The factor of a minimum is the mean code, so that the weights have a mean near zero.
_FP16_SCALES = {
    QType.Q2_K: ((80, 1), (82, 1.5)), QType.Q3_K: ((108, 1),), QType.Q4_K: ((0, 1), (2, 7.5)),
    QType.Q5_K: ((0, 1), (2, 15.5)), QType.Q6_K: ((208, 1),), QType.IQ1_S: ((0, 1),), QType.IQ2_XXS: ((0, 1),),
    QType.IQ2_XS: ((0, 1),), QType.IQ2_S: ((0, 1),), QType.IQ3_XXS: ((0, 1),), QType.IQ3_S: ((0, 1),),
    QType.IQ4_NL: ((0, 1),), QType.IQ4_XS: ((0, 1),),
}  # fmt: skip


def random_weights(rng, shape, qtype, std=0.05):
    """Make a random weight tensor with about the given standard deviation.

    Parameters
    ----------
    rng : numpy.random.Generator
    shape : tuple of int           row-major; the last is the row length, a multiple of the type's block
    qtype : GGMLQuantizationType
    std : float                    wanted standard deviation of the dequantized weights

    Returns
    -------
    uint8 (*shape[:-1], row_bytes), or float32 / float16 of `shape` for F32 / F16
    """
    if qtype in (QType.F32, QType.F16):
        return (rng.standard_normal(shape, dtype=np.float32) * std).astype(
            np.float32 if qtype == QType.F32 else np.float16
        )
    block, block_bytes = gguf.GGML_QUANT_SIZES[qtype]
    assert shape[-1] % block == 0, (
        f"row length {shape[-1]} is no multiple of {block} ({qtype.name})"
    )
    if qtype not in _FP16_SCALES and qtype not in (QType.IQ1_M, QType.NVFP4):
        return gguf.quants.quantize(rng.standard_normal(shape, dtype=np.float32) * std, qtype)
    n_blocks = int(np.prod(shape)) // block
    raw = rng.integers(0, 256, (n_blocks, block_bytes), dtype=np.uint8)
    _set_scales(raw, qtype, 1.0)
    sample = gguf.quants.dequantize(raw[:64], qtype)
    _set_scales(raw, qtype, std / float(sample.std()), rng)
    return raw.reshape(*shape[:-1], shape[-1] // block * block_bytes)


def _set_scales(raw, qtype, scale, rng=None):
    """Write `scale` (times 0.8 .. 1.2 when `rng` is given) into the scale fields of raw (N, block_bytes)."""
    spread = np.ones(len(raw)) if rng is None else rng.uniform(0.8, 1.2, len(raw))
    half = (scale * spread).astype(np.float16)
    if qtype == QType.IQ1_M:  # the fp16 is spread over the top nibbles of the last four uint16
        bits = half.view(np.uint16)
        tail = raw[:, 48:56].copy().view(np.uint16)
        for i in range(4):
            tail[:, i] = (tail[:, i] & 0x0FFF) | (((bits >> (4 * i)) & 0xF) << 12)
        raw[:, 48:56] = tail.view(np.uint8)
    elif qtype == QType.NVFP4:  # four unsigned e4m3 scales; exponent field chosen, mantissa random
        exponent = int(np.clip(np.floor(np.log2(scale)) + 7, 1, 14))
        raw[:, :4] = (exponent << 3) | (raw[:, :4] & 7 if rng is not None else 0)
    else:
        for at, factor in _FP16_SCALES[qtype]:
            raw[:, at : at + 2] = (half * np.float16(factor)).view(np.uint8).reshape(-1, 2)


def dequantized(raw, qtype):
    """float32 weights of what `random_weights` returned."""
    if qtype in (QType.F32, QType.F16):
        return raw.astype(np.float32)
    return gguf.quants.dequantize(raw, qtype)
