"""Random but valid quant blocks of a wanted standard deviation, as fast as the random generator.

Quant bits are uniform. Where a type has a minimum beside the scale, it is set so that every sub-block
has mean zero, as in trained weights; block scales vary by +-25 %.
"""

from functools import lru_cache

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Q

# Byte offset of the fp16 block scale. Source: ggml-common.h of llama.cpp, block_<type>.
_SCALE_AT = {
    Q.Q4_0: 0, Q.Q4_1: 0, Q.Q5_0: 0, Q.Q5_1: 0, Q.Q8_0: 0,
    Q.Q2_K: 80, Q.Q3_K: 108, Q.Q4_K: 0, Q.Q5_K: 0, Q.Q6_K: 208,
    Q.IQ1_S: 0, Q.IQ2_XXS: 0, Q.IQ2_XS: 0, Q.IQ2_S: 0, Q.IQ3_XXS: 0, Q.IQ3_S: 0,
    Q.IQ4_NL: 0, Q.IQ4_XS: 0, Q.TQ1_0: 52, Q.TQ2_0: 64,
}  # fmt: skip
# Byte offset of the fp16 minimum and its size in units of the scale: minus the mean quant value
# for types that add it, plus for those that subtract it.
_MIN_AT = {
    Q.Q4_1: (2, -7.5), Q.Q5_1: (2, -15.5), Q.Q2_K: (82, 1.5), Q.Q4_K: (2, 7.5), Q.Q5_K: (2, 15.5),
}  # fmt: skip
_FIVE_DIGITS = np.array([(256 * i + 242) // 243 for i in range(243)], np.uint8)


def random_blocks(qtype: Q, n_blocks: int, std: float, rng: np.random.Generator) -> np.ndarray:
    """Make blocks whose dequantized weights have mean about 0 and standard deviation `std`.

    Returns
    -------
    blocks : uint8 (n_blocks, block bytes); finite for every type
    """
    if qtype in (Q.F32, Q.F16, Q.BF16):
        return _floats(qtype, n_blocks, std, rng)
    blocks = _quants(qtype, n_blocks, rng)
    scale = rng.random(n_blocks, np.float32)
    scale = (0.75 + 0.5 * scale) * np.float32(std / _unit_std(qtype))
    _set_scale(qtype, blocks, scale)
    return blocks


def _floats(qtype, n, std, rng):
    x = rng.standard_normal(n, np.float32) * np.float32(std)
    if qtype == Q.F16:
        x = x.astype(np.float16)
    elif qtype == Q.BF16:
        x = (x.view(np.uint32) >> 16).astype(np.uint16)
    return x.view(np.uint8).reshape(n, -1)


def _quants(qtype, n_blocks, rng):
    """Uniform bytes, with those fields put right that not every value is valid for."""
    block_bytes = gguf.GGML_QUANT_SIZES[qtype][1]
    n = n_blocks * block_bytes
    blocks = rng.bit_generator.random_raw((n + 7) // 8).view(np.uint8)[:n]
    blocks = blocks.reshape(n_blocks, block_bytes)
    if qtype in (Q.Q4_K, Q.Q5_K):  # 6-bit minimum = 6-bit scale of every sub-block
        blocks[:, 8:12] = blocks[:, 4:8]
        blocks[:, 12:16] = (blocks[:, 12:16] & 15) * 17
    elif qtype == Q.Q2_K:  # 4-bit minimum = 4-bit scale
        blocks[:, :16] = (blocks[:, :16] & 15) * 17
    elif qtype == Q.TQ1_0:  # 48 bytes of five digits and 4 of four, base 3, as a share of 256
        blocks[:, :48] = _FIVE_DIGITS[rng.integers(0, 243, (n_blocks, 48), np.uint8)]
        blocks[:, 48:52] = _FIVE_DIGITS[3 * rng.integers(0, 81, (n_blocks, 4), np.uint8)]
    elif qtype == Q.TQ2_0:  # 2-bit codes 0, 1, 2: 3 becomes 1
        blocks[:, :64] &= ~(blocks[:, :64] & (blocks[:, :64] << 1) & 0xAA)
    return blocks


def _set_scale(qtype, blocks, scale):
    """Write float32 (n_blocks,) scales into `blocks` in place."""
    if qtype == Q.MXFP4:  # a power of two
        blocks[:, 0] = np.clip(np.round(np.log2(scale)) + 127, 1, 254).astype(np.uint8)
    elif qtype == Q.NVFP4:  # four e4m3 scales a block, each of its own size
        blocks[:, :4] = _e4m3(scale[:, None] * (1 + blocks[:, :4] / np.float32(256)))
    elif qtype == Q.IQ1_M:  # the fp16 lies in the top nibbles of the four 16-bit scale words
        bits = scale.astype(np.float16).view(np.uint16)
        for i in range(4):
            nibble = ((bits >> (4 * i)) & 15).astype(np.uint8)
            blocks[:, 49 + 2 * i] = (blocks[:, 49 + 2 * i] & 15) | (nibble << 4)
    else:
        _set_fp16(blocks, _SCALE_AT[qtype], scale)
        if qtype in _MIN_AT:
            at, factor = _MIN_AT[qtype]
            _set_fp16(blocks, at, scale * np.float32(factor))


def _e4m3(x):
    """Code positive float32 values as unsigned e4m3 (bias 7), below 2^-6 in steps of 2^-9."""
    exponent = np.clip(np.floor(np.log2(x)), -6, 7)
    code = np.round(x * np.exp2(3 - exponent)) + 8 * (exponent + 6)
    return np.clip(code, 1, 126).astype(np.uint8)


def _set_fp16(blocks, at, value):
    blocks[:, at : at + 2] = value.astype(np.float16).view(np.uint8).reshape(-1, 2)


@lru_cache(None)
def _unit_std(qtype: Q) -> float:
    """Standard deviation of blocks whose scale is 1, measured once a type."""
    rng = np.random.Generator(np.random.SFC64(7))
    blocks = _quants(qtype, 2048, rng)
    _set_scale(qtype, blocks, np.ones(2048, np.float32))
    return float(gguf.quants.dequantize(blocks, qtype).std())
