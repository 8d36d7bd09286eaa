"""Quantizers against `gguf.quants.dequantize`: bytes are read as meant, and the search beats plain rounding."""

import gguf
import numpy as np
import pytest

from moeengine.errors import ConfigError, NumericError, UnsupportedError
from moeengine.quantize import available, quantize
from tests.quantize.plain_rounding import plain

QType = gguf.GGMLQuantizationType
FLOATS = (QType.F32, QType.F16, QType.BF16)
ROUNDED = [q for q in available() if q not in FLOATS]
# Largest relative error (root of mean square) on Gaussian weights: what the format is worth, a little above
# what the search reaches. A wrong scale or a swapped nibble gives 0.5 and more.
LARGEST_ERROR = {
    "IQ2_XXS": 0.34, "Q2_K": 0.275, "Q3_K": 0.152, "Q4_K": 0.073, "Q4_0": 0.083, "Q5_K": 0.036, "Q5_0": 0.041,
    "Q6_K": 0.0175, "Q8_0": 0.0052,
}  # fmt: skip


def gaussian(rows=16, columns=512, seed=0):
    return np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32) * 0.03


def skewed_importance(columns, seed=1):
    """Mean squares of real activations are as uneven as this: a few columns carry most."""
    return np.random.default_rng(seed).gamma(0.4, 1, columns).astype(np.float32)


def weighted_error(x, y, w):
    return np.sqrt((w * np.square(x.astype(np.float64) - y)).sum() / (w * np.square(x.astype(np.float64))).sum())


@pytest.mark.parametrize("qtype", ROUNDED, ids=lambda q: q.name)
def test_gaussian_weights_come_back_within_the_formats_error(qtype):
    x = gaussian()
    raw = quantize(x, qtype)
    assert raw.dtype == np.uint8 and raw.shape == (
        16,
        512 // gguf.GGML_QUANT_SIZES[qtype][0] * gguf.GGML_QUANT_SIZES[qtype][1],
    )
    assert weighted_error(x, gguf.quants.dequantize(raw, qtype), 1) < LARGEST_ERROR[qtype.name]


@pytest.mark.parametrize("qtype", ROUNDED, ids=lambda q: q.name)
def test_search_beats_plain_rounding_in_weighted_error(qtype):
    x, w = gaussian(), skewed_importance(512)
    ours = weighted_error(x, gguf.quants.dequantize(quantize(x, qtype, importance=w), qtype), w)
    theirs = weighted_error(x, plain(x, qtype), w)
    assert ours < 0.95 * theirs


@pytest.mark.parametrize("qtype", ROUNDED, ids=lambda q: q.name)
def test_importance_lowers_the_error_it_weighs(qtype):
    x, w = gaussian(seed=3), skewed_importance(512)
    with_it = weighted_error(x, gguf.quants.dequantize(quantize(x, qtype, importance=w), qtype), w)
    without = weighted_error(x, gguf.quants.dequantize(quantize(x, qtype), qtype), w)
    assert with_it < 0.97 * without


@pytest.mark.parametrize("qtype", ROUNDED, ids=lambda q: q.name)
@pytest.mark.parametrize("scale", [0.0, 1e-6, 1.0, 3e3])
def test_any_magnitude_is_kept(qtype, scale):
    x = gaussian(4, 256) * np.float32(scale)
    back = gguf.quants.dequantize(quantize(x, qtype), qtype)
    assert np.isfinite(back).all()
    # Below 6e-8 an fp16 scale is zero or a subnormal with few bits: there only the size is asked for.
    allowed = LARGEST_ERROR[qtype.name] * 1.3 if scale >= 1 else 1.01
    assert np.linalg.norm(x - back) <= allowed * np.linalg.norm(x)


@pytest.mark.parametrize("qtype", ROUNDED, ids=lambda q: q.name)
def test_odd_rows_are_kept(qtype):
    """One sign only, one value only, one outlier."""
    x = np.stack(
        [
            np.abs(gaussian(1)[0]),
            -np.abs(gaussian(1)[0]),
            np.full(512, 0.25, np.float32),
            np.eye(1, 512, 7, dtype=np.float32)[0],
        ]
    )
    back = gguf.quants.dequantize(quantize(x, qtype), qtype)
    for row, got in zip(x, back, strict=True):
        assert np.linalg.norm(row - got) < 0.75 * np.linalg.norm(
            row
        )  # an outlier costs IQ2_XXS 0.72: its least level is not 0


@pytest.mark.parametrize("qtype", [QType.Q8_0, QType.Q6_K, QType.Q4_K, QType.IQ2_XXS], ids=lambda q: q.name)
def test_rounding_again_changes_little(qtype):
    """Values on the format's own points come back (nearly) as they were: what lies on the grid stays there."""
    once = gguf.quants.dequantize(quantize(gaussian(8, 256), qtype), qtype)
    twice = gguf.quants.dequantize(quantize(once, qtype), qtype)
    assert weighted_error(once, twice, 1) < 0.35 * LARGEST_ERROR[qtype.name]


def test_signs_of_iq2_xxs_have_even_parity():
    raw = quantize(gaussian(8, 256), "iq2_xxs").reshape(-1, 66)
    back = gguf.quants.dequantize(raw.reshape(8, 66), QType.IQ2_XXS)
    assert ((back < 0).reshape(-1, 8).sum(1) % 2 == 0).all()


@pytest.mark.parametrize("qtype", FLOATS, ids=lambda q: q.name)
def test_float_types_round_to_nearest(qtype):
    x = gaussian(2, 64)
    expected = x if qtype == QType.F32 else gguf.quants.dequantize(gguf.quants.quantize(x, qtype), qtype)
    raw = quantize(x, qtype)
    got = raw.view(np.float32) if qtype == QType.F32 else gguf.quants.dequantize(raw, qtype)
    assert np.array_equal(got, expected)


def test_rows_are_independent_of_their_neighbours_and_of_chunks():
    x, w = gaussian(700, 256), skewed_importance(256)
    whole = quantize(x, "iq2_xxs", importance=w)
    assert np.array_equal(whole[690:], quantize(x[690:], "iq2_xxs", importance=w))


def test_importance_may_differ_by_expert():
    x = gaussian(6, 256).reshape(2, 3, 256)
    w = np.stack([skewed_importance(256, 1), skewed_importance(256, 2)])[:, None]
    both = quantize(x, "q4_k", importance=w)
    assert np.array_equal(both[1], quantize(x[1], "q4_k", importance=w[1]))
    assert not np.array_equal(both[1], quantize(x[1], "q4_k", importance=w[0]))


def test_an_expert_without_importance_is_rounded_as_if_all_counted_alike():
    x, w = gaussian(2, 256), np.zeros((2, 256), np.float32)
    w[0] = skewed_importance(256)
    assert np.array_equal(quantize(x, "q4_k", importance=w)[1], quantize(x[1:], "q4_k")[0])


def test_wrong_arguments_are_refused():
    with pytest.raises(UnsupportedError, match="iq3_s.*writable types are .*iq2_xxs"):
        quantize(gaussian(), "iq3_s")
    with pytest.raises(ConfigError, match="rows of 96 weights, expected a multiple of 256"):
        quantize(np.zeros((2, 96), np.float32), "q4_k")
    with pytest.raises(ConfigError, match="does not broadcast"):
        quantize(gaussian(), "q4_k", importance=np.ones(3))
    with pytest.raises(ConfigError, match="negative"):
        quantize(gaussian(), "q4_k", importance=np.full(512, -1.0))
    with pytest.raises(NumericError, match="not finite"):
        quantize(np.full((1, 32), np.nan, np.float32), "q8_0")
