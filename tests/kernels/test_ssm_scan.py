"""The scan of Mamba-2 layers: every instruction set gives the same bytes, close to float64 NumPy; no split shows."""

import numpy as np
import pytest

from moeengine.kernels import testing as ops

from .isas import assert_same_bytes, on_every_isa

SHAPES = [(1, 1, 1), (4, 16, 3), (5, 20, 40), (8, 64, 33), (3, 100, 7), (7, 128, 70), (2, 144, 5)]  # rows, dim, tokens


def problem(n_rows, dim, n_tokens):
    rng = np.random.default_rng([n_rows, dim, n_tokens])

    def normal(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    decay, dt = (rng.uniform(low, high, n_tokens).astype(np.float32) for low, high in ((0.5, 1), (0, 2)))
    return [normal(n_rows, dim), normal(n_tokens, dim), normal(n_tokens, dim), normal(n_tokens, n_rows), decay, dt, 0.75]


def both(*arguments):
    """Results and state in one array, as on_every_isa compares one."""
    return np.concatenate([part.reshape(-1) for part in ops.ssm_scan(*arguments)])


def reference(state, b, c, x, decay, dt, skip):
    state, out = state.astype(np.float64), []
    for t in range(len(b)):
        state = state * decay[t] + np.outer(x[t] * dt[t], b[t])
        out.append(state @ c[t] + skip * x[t])
    return np.concatenate([np.concatenate(out), state.reshape(-1)])


@pytest.mark.parametrize("shape", SHAPES)
def test_ssm_scan(shape):
    arguments = problem(*shape)
    want = reference(*arguments)
    assert np.abs(on_every_isa(lambda: both(*arguments)) - want).max() < 2e-6 * np.abs(want).max() * shape[1] ** 0.5


@pytest.mark.parametrize("dim", [64, 100, 128])
def test_ssm_scan_however_it_is_cut(dim):
    state, b, c, x, decay, dt, skip = problem(7, dim, 50)
    whole, after = ops.ssm_scan(state, b, c, x, decay, dt, skip)
    at, parts = state, []
    for i, n in ((0, 1), (1, 3), (4, 33), (37, 13)):
        rows = slice(i, i + n)
        out, at = ops.ssm_scan(at, b[rows], c[rows], x[rows], decay[rows], dt[rows], skip)
        parts.append(out)
    assert_same_bytes(np.concatenate(parts), whole)
    assert_same_bytes(at, after)
    for rows in (slice(0, 1), slice(1, 4), slice(4, 7)):
        out, part = ops.ssm_scan(state[rows], b, c, np.ascontiguousarray(x[:, rows]), decay, dt, skip)
        assert_same_bytes(out, np.ascontiguousarray(whole[:, rows]))
        assert_same_bytes(part, after[rows])


def test_rows_in_registers_and_in_memory_are_the_same_bytes():
    """128 has code of its own; zeros behind it add nothing to any sum."""
    state, b, c, x, decay, dt, skip = problem(5, 128, 40)
    whole, after = ops.ssm_scan(state, b, c, x, decay, dt, skip)
    longer = [np.pad(a, ((0, 0), (0, 16))) for a in (state, b, c)]
    out, new = ops.ssm_scan(*longer, x, decay, dt, skip)
    assert_same_bytes(out, whole)
    assert_same_bytes(np.ascontiguousarray(new[:, :128]), after)


@pytest.mark.parametrize("n", [1, 15, 16, 17, 200])
def test_conv_silu_with_bias(n):
    rng = np.random.default_rng(n)
    x, w = (rng.standard_normal((4, n)).astype(np.float32) for _ in range(2))
    bias = rng.standard_normal(n).astype(np.float32)
    sums = (x.astype(np.float64) * w).sum(0) + bias
    assert np.abs(on_every_isa(lambda: ops.conv_silu(x, w, bias)) - sums / (1 + np.exp(-sums))).max() < 3e-6
