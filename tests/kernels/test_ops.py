"""Row operations: every instruction set gives the bytes of scalar, and those are close to float64 NumPy."""

import numpy as np
import pytest

from moeengine.kernels import testing as ops

from .isas import assert_same_bytes, forced, on_every_isa
from .isas import ISAS

SIZES = [*range(1, 34), 64, 100, 128, 2048, 2051]
SPECIAL = np.array(
    [0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1e-38, 3e38, -3e38, 88.7, -88.7, 89, -104, 1e-8], np.float32
)


def rows(n, count=2, scale=1.0, seed=0):
    rng = np.random.default_rng([n, seed])
    return [(rng.standard_normal(n) * scale).astype(np.float32) for _ in range(count)]


def assert_close(got, want, rel, floor=0.0):
    """|got - want| <= rel * |want| + floor; rel may be an array."""
    error = np.abs(got.astype(np.float64) - want)
    worst = np.argmax(error - rel * np.abs(want))
    assert np.all(error <= rel * np.abs(want) + floor), (worst, got[worst], want[worst])


@pytest.mark.parametrize("n", SIZES)
def test_rms_norm(n):
    x, w = rows(n, scale=3)
    wide = x.astype(np.float64)
    normal = wide / np.sqrt(np.mean(wide * wide) + 1e-6)
    assert_close(on_every_isa(lambda: ops.rms_norm(x, w, 1e-6)), normal * w, 1e-6)
    assert_close(on_every_isa(lambda: ops.rms_norm(x, None, 1e-6)), normal, 1e-6)


@pytest.mark.parametrize("n", SIZES)
def test_layer_norm(n):
    x, w = rows(n, scale=3)
    x += 2
    wide = x.astype(np.float64) - x.astype(np.float64).mean()
    normal = wide / np.sqrt(np.mean(wide * wide) + 1e-3)
    assert_close(on_every_isa(lambda: ops.layer_norm(x, w, 1e-3)), normal * w, 1e-6, 1e-4 if n == 1 else 2e-6)
    assert_close(on_every_isa(lambda: ops.layer_norm(x, None, 1e-3)), normal, 1e-6, 1e-4 if n == 1 else 2e-6)
    assert np.isnan(on_every_isa(lambda: ops.layer_norm(SPECIAL, None, 1e-6))).all()


def test_rms_norm_of_zeros_is_zero():
    zero = np.zeros(40, np.float32)
    assert not on_every_isa(lambda: ops.rms_norm(zero, None, 1e-6)).any()


@pytest.mark.parametrize("n", SIZES)
def test_sums_and_products(n):
    a, b = rows(n)
    assert_same_bytes(on_every_isa(lambda: ops.add(a, b)), a + b)
    assert_same_bytes(on_every_isa(lambda: ops.mul(a, b)), a * b)
    assert_same_bytes(on_every_isa(lambda: ops.relu_mul(a, b)), np.maximum(a, 0) * b)
    assert_same_bytes(on_every_isa(lambda: ops.scale(0.3, a)), np.float32(0.3) * a)
    # the product of two float32 is exact in float64; the sum is rounded twice, which hardly ever shows
    got = madd(np.float32(0.3), a, b)
    exact = np.float64(np.float32(0.3)) * a + b
    assert np.mean(got == exact.astype(np.float32)) > 0.99 or n < 100
    assert_close(got, exact, 6e-8, 1e-45)


def add_weighted(*args):
    return on_every_isa(lambda: ops.add_weighted(*args)[0])


def is_finite(x):
    one, first = np.ones(1, np.float32), np.zeros(len(x), np.int32)
    return on_every_isa(lambda: np.array(ops.add_weighted(one, first, 1, x, np.zeros_like(x[:1]))[1]))


def madd(factor, x, y):
    return add_weighted(np.array([factor], np.float32), np.zeros(1, np.int32), 1, x[None], y[None])[0]


@pytest.mark.parametrize("n", SIZES)
def test_weighted_rows_go_where_their_pair_says(n):
    """Some rows twice, some never, each in the order of the pairs."""
    rng = np.random.default_rng(n)
    x, y = rng.standard_normal((9, n)).astype(np.float32), rng.standard_normal((5, n)).astype(np.float32)
    weight = rng.standard_normal(15).astype(np.float32)
    pair = np.array([14, 3, 5, 4, 0, 12, 1, 2, 13], np.int32)
    want = y.copy()
    for row, p in zip(x, pair):
        want[p // 3] = madd(weight[p], row, want[p // 3])
    assert_same_bytes(add_weighted(weight, pair, 3, x, y), want)


@pytest.mark.parametrize("n", SIZES)
def test_weighted_rows_that_are_not_finite_are_noticed(n):
    x = np.stack(rows(n, scale=1e37))
    assert is_finite(x)
    for at in {0, n // 2, n - 1} if n else ():
        for k, value in ((0, np.nan), (1, np.inf), (0, -np.inf)):
            bad = x.copy()
            bad[k, at] = value
            assert not is_finite(bad)


@pytest.mark.parametrize("n", SIZES)
def test_gated_activations(n):
    gate, up = rows(n, scale=4)
    g = gate.astype(np.float64)
    assert_close(on_every_isa(lambda: ops.silu_mul(gate, up)), g / (1 + np.exp(-g)) * up, 5e-7)
    half = gate.astype(np.float16).astype(np.float64)
    gelu = 0.5 * half * (1 + np.tanh(np.sqrt(2 / np.pi) * (half + 0.044715 * half**3)))
    assert_close(on_every_isa(lambda: ops.gelu_mul(gate, up)), gelu * up, 5e-4, 1e-5)  # rounded to F16, and near 0 by what tanh loses near -1
    assert_close(on_every_isa(lambda: ops.softcap(3, gate)), 3 * np.tanh(g / 3), 1e-6, 1e-6)
    bounded = np.minimum(g / (1 + np.exp(-g)), 2) * np.clip(up, -2, 2)
    assert_close(on_every_isa(lambda: ops.silu_bounded(gate, up, 2)), bounded, 5e-7)
    gate, up = 3 * gate, 3 * up  # beyond the limit of 7 on either side
    g, u = np.minimum(gate, 7).astype(np.float64), np.clip(up, -7, 7).astype(np.float64)
    assert_close(on_every_isa(lambda: ops.swiglu_oai(gate, up)), g / (1 + np.exp(-1.702 * g)) * (u + 1), 1e-6 + 2e-7 * np.abs(g))
    g, u = np.minimum(gate, 5).astype(np.float64), np.clip(up, -5, 5).astype(np.float64)
    assert_close(on_every_isa(lambda: ops.swiglu_clamp(gate, up, 5)), g / (1 + np.exp(-g)) * u, 1e-6)


def test_gelu_is_the_table_of_all_half_numbers():
    """Every F16 within -10 .. 10 against the formula in float64: what tanh loses near -1 in float32 is part of the table."""
    x = np.arange(65536, dtype=np.uint16).view(np.float16)
    x = x[np.isfinite(x) & (np.abs(x) < 10)]
    wide = x.astype(np.float64)
    want = (0.5 * wide * (1 + np.tanh(np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3)))).astype(np.float16)
    got = on_every_isa(lambda: ops.gelu_mul(x.astype(np.float32), np.ones(len(x), np.float32)))
    assert (np.abs(got - want) <= np.maximum(np.abs(want) * 2**-10, 5e-7)).all() and (got != want).sum() < 1000
    beyond = np.array([10, 10.001, 31.7, 1e4, 3e38, -10, -12, -3e38], np.float32)
    got = on_every_isa(lambda: ops.gelu_mul(beyond, np.ones_like(beyond)))
    assert_same_bytes(np.abs(got), np.maximum(beyond, 0))


def test_exp_is_accurate_over_its_whole_range():
    # silu(x) = x / (1 + e^-x) shows e^-x where it is large
    x = np.linspace(-87, 87, 20001).astype(np.float32)
    got = on_every_isa(lambda: ops.silu_mul(x, np.ones_like(x)))
    wide = x.astype(np.float64)
    assert_close(got, wide / (1 + np.exp(-wide)), 3e-7, 1e-44)
    # softmax of (0, x) shows e^x where it is small, subnormal results included
    for v in (-0.5, -1, -20, -80, -87, -90, -100, -103):
        got = on_every_isa(lambda: ops.softmax(np.array([0, v], np.float32)))[1]
        assert abs(got - np.exp(v) / (1 + np.exp(v))) <= 3e-7 * np.exp(v) + 1.4e-45, v


def test_special_values_go_the_same_way_everywhere():
    pairs = np.array(np.meshgrid(SPECIAL, SPECIAL)).reshape(2, -1)
    a, b = np.ascontiguousarray(pairs[0]), np.ascontiguousarray(pairs[1])
    for call in (ops.add, ops.mul, ops.silu_mul, ops.relu_mul, ops.gelu_mul, ops.swiglu_oai, lambda a, b: ops.swiglu_clamp(a, b, 2),
                 lambda a, b: ops.silu_bounded(a, b, 2), lambda a, b: ops.softcap(2, a)):
        assert np.isnan(on_every_isa(lambda: call(a, b))[np.isnan(a)]).all()
    for factor in SPECIAL:
        with np.errstate(all="ignore"):
            assert_same_bytes(on_every_isa(lambda: ops.scale(factor, a)), factor * a)
        madd(factor, a, b)
    assert np.isnan(on_every_isa(lambda: ops.rms_norm(SPECIAL, None, 1e-6))).all()


def test_madd_is_rounded_once():
    """Sums that lie within 2^-60 of the middle between two floats, where rounding twice goes wrong."""
    rng = np.random.default_rng(5)
    n = 20000
    a = (1 + rng.integers(0, 1 << 23, n) * 2.0**-23).astype(np.float32)
    scale = 2.0 ** rng.integers(-60, 60, n)
    factor = np.float32(1 + 2.0**-12)
    y = (scale * (1 + rng.integers(0, 1 << 23, n) * 2.0**-23) * rng.choice([-1, 1], n)).astype(np.float32)
    got = madd(factor, a, y)
    exact = np.longdouble(factor) * a.astype(np.longdouble) + y  # 64-bit mantissa: exact but for far-apart scales
    near = np.abs(np.log2(scale)) < 14
    assert_same_bytes(got[near], exact[near].astype(np.float32))
    # halfway plus a little, and halfway exactly: 1 + 2^-24 (+ 2^-60)
    for tiny, want in ((2.0**-60, 1 + 2.0**-23), (0.0, 1.0), (-(2.0**-60), 1.0)):
        one = np.array([1 + tiny * 0], np.float32)
        x = np.array([2.0**-24], np.float32)
        got = madd(1.0, x, one)
        assert got[0] == 1.0
    # 2^-12 * (2^-12 + 2^-35) = 2^-24 + 2^-47 above 1: rounds up; with the sign turned, down
    x = np.array([2.0**-12 + 2.0**-35], np.float32)
    assert madd(2.0**-12, x, np.ones(1, np.float32))[0] == np.float32(1 + 2.0**-23)
    x = np.array([2.0**-12 - 2.0**-36], np.float32)
    assert madd(2.0**-12, x, np.ones(1, np.float32))[0] == 1


@pytest.mark.parametrize("neox", [False, True])
@pytest.mark.parametrize("n_rot,n", [(2, 2), (4, 6), (10, 16), (32, 64), (64, 64), (128, 128), (96, 100)])
def test_rope(neox, n_rot, n):
    (x,) = rows(n, 1)
    angle = np.random.default_rng(n_rot).uniform(0, 6.28, n_rot // 2)
    cs = np.stack([np.cos(angle), np.sin(angle)], axis=1).astype(np.float32)
    got = on_every_isa(lambda: ops.rope(x, cs, neox))
    pair = np.arange(n_rot).reshape(2, -1).T if neox else np.arange(n_rot).reshape(-1, 2)
    want = x.astype(np.float64)
    z = (x[pair[:, 0]] + 1j * x[pair[:, 1]]) * (cs[:, 0].astype(np.float64) + 1j * cs[:, 1])
    want[pair[:, 0]], want[pair[:, 1]] = z.real, z.imag
    assert_close(got, want, 0, 3e-7)
    assert_same_bytes(got[n_rot:], x[n_rot:])


def test_every_f16_to_f32():
    bits = np.arange(65536, dtype=np.uint16)
    assert_same_bytes(on_every_isa(lambda: ops.f16_to_f32(bits)), bits.view(np.float16).astype(np.float32))


def test_f32_to_f16_rounds_to_even():
    half = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    middle = (half[:-1] + half[1:]) / 2  # exact in float32
    edges = np.concatenate([half, middle, np.nextafter(middle, 0), np.nextafter(middle, np.inf), SPECIAL])
    edges = np.concatenate([edges, np.array([65504, 65519.99, 65520, 65536, 1e10], np.float32)]).astype(np.float32)
    both = np.concatenate([edges, -edges])
    got = on_every_isa(lambda: ops.f32_to_f16(both))
    with np.errstate(over="ignore"):
        want = both.astype(np.float16)
    assert_same_bytes(got.view(np.float16).astype(np.float32), want.astype(np.float32))


@pytest.mark.parametrize("n", range(1, 34))
def test_f16_rows_of_every_size(n):
    (x,) = rows(n, 1)
    half = on_every_isa(lambda: ops.f32_to_f16(x))
    assert np.array_equal(half, x.astype(np.float16).view(np.uint16))
    assert np.array_equal(on_every_isa(lambda: ops.f16_to_f32(half)), x.astype(np.float16).astype(np.float32))


@pytest.mark.parametrize("n", SIZES)
def test_softmax(n):
    (x,) = rows(n, 1, scale=5)
    below = x.astype(np.float64) - x.max()  # rounded to float32, which is an error of 2^-24 of it
    wide = np.exp(below)
    assert_close(on_every_isa(lambda: ops.softmax(x)), wide / wide.sum(), 1e-6 - below * 2.0**-24)


def test_softmax_of_masked_values():
    got = on_every_isa(lambda: ops.softmax(np.array([1, -np.inf, 1, -np.inf], np.float32)))
    assert got.tolist() == [0.5, 0, 0.5, 0]


@pytest.mark.parametrize("n", [1, 3, 16, 17, 33])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_softmax_reports_what_it_cannot_do(n, bad):
    for at in range(n):
        (x,) = rows(n, 1)
        x[at] = bad
        assert on_every_isa(lambda: ops.softmax(x)) is None
    assert on_every_isa(lambda: ops.softmax(np.full(n, -np.inf, np.float32))) is None


@pytest.mark.parametrize("isa", ISAS)
def test_nothing_past_the_row_is_touched(isa):
    """Rows that end at the end of a page: a read or write past them would crash."""
    import mmap

    page = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    assert libc_mprotect(page, mmap.PAGESIZE, mmap.PAGESIZE) == 0
    whole = np.frombuffer(page, np.uint8, mmap.PAGESIZE)
    with forced(isa):
        for n in range(1, 34):
            x = whole[mmap.PAGESIZE - 4 * n :].view(np.float32)
            x[:] = 1
            h = np.ascontiguousarray(x.astype(np.float16).view(np.uint16))
            tail = whole[mmap.PAGESIZE - 2 * n :].view(np.uint16)
            results = (ops.add(x, x), ops.rms_norm(x, x, 0), ops.layer_norm(x, x, 1), ops.mul(x, x), ops.silu_mul(x, x), ops.relu_mul(x, x), ops.swiglu_oai(x, x), ops.swiglu_clamp(x, x, 9), ops.softmax(x))
            for result in (*results, ops.f32_to_f16(x)):
                assert len(result) == n
            tail[:] = h
            assert ops.f16_to_f32(tail).tolist() == [1] * n


def libc_mprotect(memory, offset, n_bytes):
    """Take all rights from n_bytes of an mmap; 0 when it worked."""
    import ctypes

    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    return ctypes.CDLL(None).mprotect(ctypes.c_void_p(address + offset), ctypes.c_size_t(n_bytes), 0)
