"""Every weight type on every instruction set of this machine.

Oracles: gguf.quants for the values of weights, NumPy in float64 for products. Between instruction
sets, batches and row counts: the same bytes."""

import ctypes
import mmap
import os
import subprocess
import sys

import gguf
import numpy as np
import pytest

from moeengine import kernels
from moeengine.errors import ConfigError, UnsupportedError

from .blocks import FLOATS, TYPES, quantized_activations, random_raw, set_halves, uses_q8_K
from .isas import on_every_isa

ISAS = kernels.isa()["available"] + kernels.isa()["for_tests"]
QUANTS = [name for name in TYPES if name not in FLOATS]
HAS_NVFP4 = hasattr(gguf.GGMLQuantizationType, "NVFP4")


@pytest.fixture(params=ISAS)
def isa(request):
    before = kernels.isa()["active"]
    kernels.set_isa(request.param)
    assert kernels.isa()["active"] == request.param
    yield request.param
    kernels.set_isa(before)


def gguf_values(raw, name):
    """float32 weights by the gguf package; raw uint8 (..., bytes)."""
    if name == "F32":
        return raw.view(np.float32)
    if name == "F16":
        return raw.view(np.float16).astype(np.float32)
    with np.errstate(all="ignore"):
        return gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[name])


def reference_product(raw, name, x):
    """float64 (T, R) from weights and quantized activations, and the sums of |products|."""
    w = gguf_values(raw, name).astype(np.float64)
    y, sums = quantized_activations(name, x)
    if name not in ("Q4_1", "Q5_1"):
        return y @ w.T, np.abs(y) @ np.abs(w.T)
    blocks = raw.reshape(raw.shape[0], -1, TYPES[name][2])
    m = np.ascontiguousarray(blocks[..., 2:4]).view(np.float16)[..., 0].astype(np.float64)
    w = (w.reshape(*m.shape, 32) - m[..., None]).reshape(w.shape)
    return y @ w.T + sums @ m.T, np.abs(y) @ np.abs(w.T) + np.abs(sums) @ np.abs(m.T)


def assert_product(got, raw, name, x):
    want, size = reference_product(raw, name, x)
    assert got.dtype == np.float32 and got.shape == want.shape
    assert np.all(np.isfinite(got))
    # a row whose scale part and min part cancel rounds like its neighbours
    assert np.all(np.abs(got - want) <= 2e-6 * size.max(-1, keepdims=True, initial=0) + 1e-30)


@pytest.mark.parametrize("name", ["Q5_0", "Q5_1"])
@pytest.mark.parametrize("n_rows, n_blocks, n_x", [(1, 1, 1), (11, 70, 3), (9, 33, 37)])
def test_float_sums_of_q5_have_eight_lanes(name, n_rows, n_blocks, n_x):
    """To the bit, in the order of moe_table.h. Activations are whole multiples of a power of two, so their codes are known."""
    f32, rng = np.float32, np.random.default_rng(n_blocks)

    def madd(a, b, c):  # a product of few bits, and one rounding
        return (a.astype(np.float64) * b + c).astype(f32)

    raw = random_raw(rng, name, (n_rows,), 32 * n_blocks)
    blocks = raw.reshape(n_rows, n_blocks, -1)
    d = np.ascontiguousarray(blocks[..., :2]).view(np.float16)[..., 0].astype(f32)
    m = np.ascontiguousarray(blocks[..., 2:4]).view(np.float16)[..., 0].astype(f32) if name == "Q5_1" else 0 * d
    weights = gguf_values(raw, name).reshape(n_rows, n_blocks, 32).astype(np.float64)
    codes = np.rint((weights - m[..., None]) / d[..., None])
    y = rng.integers(-127, 128, (n_x, n_blocks, 32))
    y[..., 5] = 127
    yd = f32(2.0) ** rng.integers(-6, 3, (n_x, n_blocks))
    sums = (y.sum(-1) * yd).astype(np.float16).astype(f32)
    acc, mins = np.zeros((n_x, n_rows, 8), f32), np.zeros((n_x, n_rows), f32)
    for i in range(n_blocks):
        parts = (codes[None, :, i] * y[:, None, i]).reshape(n_x, n_rows, 8, 4).sum(-1)
        acc = madd(parts, (d[None, :, i] * yd[:, i, None])[..., None], acc)
        mins = madd(m[None, :, i], sums[:, i, None], mins)
    acc = acc[..., :4] + acc[..., 4:]
    acc = acc[..., :2] + acc[..., 2:]
    want = acc[..., 0] + acc[..., 1] + (mins if name == "Q5_1" else 0)
    x = (y * yd[..., None]).astype(f32).reshape(n_x, -1)
    assert on_every_isa(lambda: kernels.mul_mat(raw, name, x)).tobytes() == want.astype(f32).tobytes()


def extreme_raw(name, n_in):
    """Rows of one repeated byte each, scales finite: all codes at one end, all signs set, ..."""
    _, block, n_bytes = TYPES[name]
    rows = []
    for byte in (0x00, 0xFF, 0x7F, 0x80, 0x0F, 0xF0, 0x55, 0xAA):
        raw = np.full((n_in // block, n_bytes), byte, np.uint8)
        if name not in FLOATS:
            set_halves(raw, name, np.full(len(raw), 1.5))
        rows.append(raw.reshape(-1))
    return np.stack(rows)


def extreme_activations(rng, n_in):
    """All integers at +-127, one peak among zeros, zeros, both signs, large and small numbers."""
    x = [
        np.ones(n_in),
        -np.ones(n_in),
        rng.choice([-1.0, 1.0], n_in),
        np.zeros(n_in),
        np.eye(1, n_in, 3)[0] * -7,
    ]
    x += [rng.standard_normal(n_in) * 1e4, rng.standard_normal(n_in) * 1e-4]
    x.append(np.where(np.arange(n_in) % 2, 1.0, -1.0))
    return np.array(x, np.float32)


@pytest.mark.parametrize("name", TYPES)
def test_dequantize_equals_gguf(isa, name):
    if name == "NVFP4" and not HAS_NVFP4:
        pytest.skip("this gguf package has no NVFP4")
    rng = np.random.default_rng(1)
    raw = np.concatenate([random_raw(rng, name, (5,), 768), extreme_raw(name, 768)])
    want, got = gguf_values(raw, name), kernels.dequantize(raw, name)
    assert got.dtype == np.float32 and got.shape == want.shape
    np.testing.assert_array_equal(got, want)
    assert np.any(got != 0)


@pytest.mark.parametrize("name", TYPES)
def test_dequantize_of_any_bytes(isa, name):
    """Every bit pattern, also scales that are infinite or NaN: the values of gguf, and no crash."""
    if name == "NVFP4" and not HAS_NVFP4:
        pytest.skip("this gguf package has no NVFP4")
    rng = np.random.default_rng(2)
    raw = rng.integers(0, 256, (64, 512 // TYPES[name][1] * TYPES[name][2]), dtype=np.uint8)
    np.testing.assert_array_equal(kernels.dequantize(raw, name), gguf_values(raw, name))
    assert kernels.mul_mat(raw, name, np.ones((3, 512), np.float32), 1).shape == (3, 64)


@pytest.mark.parametrize("name", TYPES)
def test_product_equals_float64(isa, name):
    if name == "NVFP4" and not HAS_NVFP4:
        pytest.skip("this gguf package has no NVFP4")
    rng = np.random.default_rng(3)
    for n_in in (256, 768):
        raw, x = random_raw(rng, name, (33,), n_in), rng.standard_normal((20, n_in), np.float32)
        assert_product(kernels.mul_mat(raw, name, x), raw, name, x)
        assert_product(kernels.mul_mat(raw, name, x[:1]), raw, name, x[:1])


@pytest.mark.parametrize("name", QUANTS)
def test_product_of_extremes(isa, name):
    if name == "NVFP4" and not HAS_NVFP4:
        pytest.skip("this gguf package has no NVFP4")
    rng = np.random.default_rng(4)
    raw, x = extreme_raw(name, 512), extreme_activations(rng, 512)
    for t in (1, 4, len(x)):
        assert_product(kernels.mul_mat(raw, name, x[:t]), raw, name, x[:t])
        assert_product(kernels.mul_mat(raw, name, x[-t:]), raw, name, x[-t:])


@pytest.mark.parametrize("name", QUANTS)
def test_one_activation_row_is_a_row_of_many(isa, name):
    """Decode has kernels of its own: any number of rows, one block a row, codes and scales at their ends."""
    rng = np.random.default_rng(11)
    raw = np.concatenate([random_raw(rng, name, (16,), 256), extreme_raw(name, 256), random_raw(rng, name, (26,), 256)])
    x = np.concatenate([rng.standard_normal((2, 256), np.float32), extreme_activations(rng, 256)])
    want = kernels.mul_mat(raw, name, x)
    for n in (1, 2, 15, 16, 17, 31, 32, 33, 48, 50):
        for t in range(len(x)):
            np.testing.assert_array_equal(kernels.mul_mat(raw[:n], name, x[t : t + 1])[0], want[t, :n])


@pytest.mark.parametrize("name", QUANTS)
def test_same_bytes_on_every_isa(name):
    rng = np.random.default_rng(5)
    raw = np.concatenate([random_raw(rng, name, (37,), 768), extreme_raw(name, 768)])
    x = np.concatenate([rng.standard_normal((40, 768), np.float32), extreme_activations(rng, 768)])
    before, results = kernels.isa()["active"], set()
    for one in ISAS:
        kernels.set_isa(one)
        results.add(
            kernels.mul_mat(raw, name, x).tobytes() + kernels.mul_mat(raw, name, x[:1]).tobytes()
        )
    kernels.set_isa(before)
    assert len(results) == 1


@pytest.mark.parametrize("name", QUANTS)
def test_every_code_gives_the_same_bytes_on_every_isa(name):
    """All points of a grid, all digits, all powers of two: enough random blocks to hold each, and rows of every byte."""
    rng = np.random.default_rng(16)
    _, block, n_bytes = TYPES[name]
    rows = np.repeat(np.arange(256, dtype=np.uint8), 512 // block)[:, None].repeat(n_bytes, 1)
    first = rows[:, 0].copy()
    set_halves(rows, name, np.full(len(rows), 1.5))
    if name == "MXFP4":
        rows[:, 0] = first
    blocks = random_raw(rng, name, (256,), 2048).reshape(-1, n_bytes)
    raw = np.concatenate([blocks, rows]).reshape(-1, 512 // block * n_bytes)
    x = rng.standard_normal((3, 512), np.float32)
    got = on_every_isa(lambda: np.concatenate([kernels.mul_mat(raw, name, x[:t]) for t in (1, 3)]))
    assert np.count_nonzero(np.isfinite(got) & (got != 0)) > got.size * 0.9
    np.testing.assert_array_equal(got[0], got[1])


@pytest.mark.parametrize("name", TYPES)
def test_any_batch_and_row_count_gives_the_same_bytes(isa, name):
    rng = np.random.default_rng(6)
    n_in = 512
    raw, x = random_raw(rng, name, (70,), n_in), rng.standard_normal((40, n_in), np.float32)
    whole = kernels.mul_mat(raw, name, x, 1)
    for t in range(1, 41):
        np.testing.assert_array_equal(kernels.mul_mat(raw, name, x[:t], 1), whole[:t])
    for t in range(40):
        np.testing.assert_array_equal(kernels.mul_mat(raw, name, x[t : t + 1], 1), whole[t : t + 1])
    for r in range(1, 34):
        np.testing.assert_array_equal(kernels.mul_mat(raw[:r], name, x, 1), whole[:, :r])
        np.testing.assert_array_equal(kernels.mul_mat(raw[r:], name, x[:3], 1), whole[:3, r:])
    for n_threads in (2, 3, 7):
        np.testing.assert_array_equal(kernels.mul_mat(raw, name, x, n_threads), whole)


@pytest.mark.parametrize("name", TYPES)
def test_one_block_a_row(isa, name):
    if name == "NVFP4" and not HAS_NVFP4:
        pytest.skip("this gguf package has no NVFP4")
    rng = np.random.default_rng(7)
    block = max(TYPES[name][1], 32) if name not in FLOATS else 1
    for n_in in (block, 3 * block, 5 * block):
        raw, x = random_raw(rng, name, (19,), n_in), rng.standard_normal((18, n_in), np.float32)
        assert_product(kernels.mul_mat(raw, name, x), raw, name, x)


@pytest.mark.parametrize("name", TYPES)
def test_reads_nothing_outside_and_needs_no_alignment(isa, name):
    """The weights end (or begin) exactly at a page that may not be read."""
    rng = np.random.default_rng(8)
    page = mmap.PAGESIZE
    libc = ctypes.CDLL(None, use_errno=True)
    for n_rows, n_in in ((1, 256), (9, 256), (21, 512)):
        raw, x = random_raw(rng, name, (n_rows,), n_in), rng.standard_normal((17, n_in), np.float32)
        want = kernels.mul_mat(raw, name, x, 1)
        inner = -(-raw.nbytes // page) * page
        memory = mmap.mmap(-1, inner + 2 * page)
        whole = np.frombuffer(memory, np.uint8)
        for guard in (0, page + inner):
            address = ctypes.c_void_p(whole.ctypes.data + guard)
            assert libc.mprotect(address, ctypes.c_size_t(page), 0) == 0
        for at in (page, page + inner - raw.nbytes):
            placed = whole[at : at + raw.nbytes].reshape(raw.shape)
            placed[:] = raw
            for t in (1, 2, 17):
                np.testing.assert_array_equal(kernels.mul_mat(placed, name, x[:t], 1), want[:t])
            np.testing.assert_array_equal(
                kernels.dequantize(placed, name), kernels.dequantize(raw, name)
            )
        for shift in (1, 2, 3, 5):
            buffer = np.zeros(raw.nbytes + 64, np.uint8)[shift:][: raw.nbytes].reshape(raw.shape)
            buffer[:] = raw
            np.testing.assert_array_equal(kernels.mul_mat(buffer, name, x, 1), want)


@pytest.mark.parametrize("name", [n for n in QUANTS if n not in ("MXFP4", "NVFP4")])
def test_nan_scale_gives_nan(isa, name):
    rng = np.random.default_rng(9)
    raw, x = random_raw(rng, name, (20,), 512), rng.standard_normal((5, 512), np.float32)
    clean = kernels.mul_mat(raw, name, x)
    blocks = raw.reshape(20, -1, TYPES[name][2])
    one = blocks[7, -1:].copy()
    set_halves(one, name, [np.nan])
    blocks[7, -1] = one
    for t in (1, 5):
        got = kernels.mul_mat(raw, name, x[:t])
        assert np.all(np.isnan(got[:, 7]))
        np.testing.assert_array_equal(np.delete(got, 7, 1), np.delete(clean[:t], 7, 1))
    assert np.any(np.isnan(kernels.dequantize(raw[7], name)))


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_activation_that_is_not_finite_is_seen_in_its_row_only(isa, name, value):
    rng = np.random.default_rng(10)
    raw, x = random_raw(rng, name, (9,), 512), rng.standard_normal((6, 512), np.float32)
    clean = kernels.mul_mat(raw, name, x)
    x[2, 300] = value
    got = kernels.mul_mat(raw, name, x)
    assert not np.any(np.isfinite(got[2]))
    np.testing.assert_array_equal(np.delete(got, 2, 0), np.delete(clean, 2, 0))


@pytest.mark.parametrize("name", TYPES)
def test_tiny_and_huge_activations(isa, name):
    """Subnormal rows count as zero where their scale cannot be inverted; large ones stay finite."""
    if name == "F16":
        pytest.skip("the format itself ends at 65504")
    rng = np.random.default_rng(11)
    raw = random_raw(rng, name, (9,), 256)
    x = np.stack([np.full(256, 1e-40), np.full(256, 1e-30), np.full(256, 1e9)]).astype(np.float32)
    got = kernels.mul_mat(raw, name, x)
    assert np.all(np.isfinite(got))
    assert np.all(np.abs(got[0]) < 1e-30)


def test_activation_integers_are_those_of_the_reference(isa):
    """Weights that are one unit vector each bring the quantized activations to light."""
    rng = np.random.default_rng(12)
    x = np.concatenate([rng.standard_normal((30, 256), np.float32), extreme_activations(rng, 256)])
    x[0] = np.linspace(-1, 1, 256)  # many ties
    x[1, :] = np.arange(256) % 32 / 31 * 127 + 0.5
    for name in ("Q8_0", "Q6_K"):
        # Q8_0: d = 1, q = 1 at one place; Q6_K: d = 1, scale 1, q = 32 + 1 at one place
        raw = np.zeros((256, 256 // TYPES[name][1] * TYPES[name][2]), np.uint8)
        if name == "Q8_0":
            blocks = raw.reshape(256, 8, 34)
            blocks[:, :, :2] = np.array([1.0], np.float16).view(np.uint8)
            blocks[np.arange(256), np.arange(256) // 32, 2 + np.arange(256) % 32] = 1
        else:
            raw[:, 192:208] = 1
            raw[:, 208:] = np.array([1.0], np.float16).view(np.uint8)
            raw[:, 128:192] = 0xAA  # high bits 2 everywhere: q - 32 = 0
            i = np.arange(256)
            raw[i, i // 128 * 64 + i % 64] |= np.where(i // 64 % 2, 16, 1).astype(np.uint8)
        assert np.array_equal(kernels.dequantize(raw, name), np.eye(256))
        y, _ = quantized_activations(name, x)
        np.testing.assert_array_equal(kernels.mul_mat(raw, name, x), y.astype(np.float32))


def test_float_rows_of_any_length(isa):
    rng = np.random.default_rng(13)
    for name in FLOATS:
        for n_in in (1, 2, 15, 16, 17, 33, 100):
            raw, x = random_raw(rng, name, (5,), n_in), rng.standard_normal((4, n_in), np.float32)
            assert_product(kernels.mul_mat(raw, name, x), raw, name, x)


def test_types_are_those_of_gguf():
    for name, (type_id, block, n_bytes) in TYPES.items():
        if name == "NVFP4" and not HAS_NVFP4:
            continue
        qtype = gguf.GGMLQuantizationType[name]
        assert (int(qtype), *gguf.GGML_QUANT_SIZES[qtype]) == (type_id, block, n_bytes)
        raw = random_raw(np.random.default_rng(0), name, (1,), 256)
        np.testing.assert_array_equal(kernels.dequantize(raw, qtype), kernels.dequantize(raw, name))


def test_reference_of_activations_is_sane():
    """The helper itself: no integer is more than half a step from the value."""
    x = np.random.default_rng(14).standard_normal((3, 512), np.float32)
    for name in ("Q4_K", "Q8_0", "F16", "BF16"):
        y, _ = quantized_activations(name, x)
        step = np.abs(x).max() / 127 if name not in FLOATS else 0.02
        assert np.abs(y - x).max() <= 0.51 * step and uses_q8_K("Q4_K")


def run_forced(name, code):
    env = {**os.environ, "MOEENGINE_ISA": name}
    return subprocess.run(
        [sys.executable, "-c", code],
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("name", ISAS)
def test_isa_forced_by_environment_is_active(name):
    done = run_forced(name, "from moeengine import kernels; print(kernels.isa()['active'])")
    assert done.stdout.strip() == name, done.stderr


def test_isa_that_is_not_there():
    code = """
import numpy as np
from moeengine import kernels
from moeengine.errors import UnsupportedError
for call in (kernels.isa, lambda: kernels.dequantize(np.zeros((1, 34), np.uint8), "Q8_0")):
    try:
        call()
    except UnsupportedError as err:
        assert "'sse9'" in str(err) and "scalar" in str(err), err
        print("refused")
"""
    done = run_forced("sse9", code)
    assert done.stdout.split() == ["refused", "refused"], done.stderr
    before = kernels.isa()
    with pytest.raises(UnsupportedError, match="sse9.*scalar"):
        kernels.set_isa("sse9")
    assert kernels.isa() == before


def test_bad_arguments():
    raw, x = np.zeros((3, 34), np.uint8), np.zeros((2, 32), np.float32)
    for bad in (
        raw.astype(np.int8),
        raw.tolist(),
        raw[None],
        raw[:, :33],
        np.zeros((3, 68), np.uint8)[:, ::2],
    ):
        with pytest.raises(ConfigError):
            kernels.mul_mat(bad, "Q8_0", x)
    for bad in (x.astype(np.float64), x[None], x[0], x[:, :31], x.tolist(), None):
        with pytest.raises(ConfigError):
            kernels.mul_mat(raw, "Q8_0", bad)
    for bad in (0, -1, 1.5, "2", 10**6):
        with pytest.raises(ConfigError):
            kernels.mul_mat(raw, "Q8_0", x, bad)
    for bad in ("Q4_X", "q8_0", 4, 1000, -1):
        with pytest.raises(UnsupportedError):
            kernels.dequantize(raw, bad)
    for bad in (None, 8.0, b"Q8_0"):
        with pytest.raises(ConfigError):
            kernels.dequantize(raw, bad)
    with pytest.raises(ConfigError):
        kernels.dequantize(raw[:, :33], "Q8_0")
    with pytest.raises(ConfigError):
        kernels.dequantize(np.uint8(3), "Q8_0")


def test_nothing_to_do():
    for shape in ((0, 34), (3, 0), (0, 0)):
        raw = np.zeros(shape, np.uint8)
        n_in = shape[1] // 34 * 32
        assert kernels.dequantize(raw, "Q8_0").shape == (shape[0], n_in)
        for t in (0, 2):
            got = kernels.mul_mat(raw, "Q8_0", np.ones((t, n_in), np.float32))
            assert got.shape == (t, shape[0]) and not got.any()
    assert kernels.mul_mat(
        np.zeros((3, 34), np.uint8), "Q8_0", np.ones((0, 32), np.float32)
    ).shape == (0, 3)


def test_strided_views_are_read_in_place():
    rng = np.random.default_rng(15)
    raw, x = random_raw(rng, "Q4_K", (24,), 512), rng.standard_normal((4, 1024), np.float32)
    np.testing.assert_array_equal(
        kernels.mul_mat(raw[::3], "Q4_K", x[::2, 512:]),
        kernels.mul_mat(raw, "Q4_K", x[:, 512:].copy())[::2, ::3],
    )
    half = kernels.mul_mat(raw[:, :144], "Q4_K", x[:, :256].copy())
    np.testing.assert_array_equal(
        half, kernels.mul_mat(raw[:, :144].copy(), "Q4_K", x[:, :256].copy())
    )
    raw.setflags(write=False)
    assert kernels.dequantize(raw, "Q4_K").shape == (24, 512)
