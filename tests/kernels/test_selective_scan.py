"""The scan of Mamba-1 layers: every instruction set gives the same bytes, close to float64 NumPy; no split shows."""

import numpy as np
import pytest

from moeengine.kernels import testing as ops

from .isas import assert_same_bytes, on_every_isa

SHAPES = [(1, 1, 1), (16, 16, 3), (16, 40, 40), (16, 64, 33), (8, 33, 7), (24, 17, 70)]  # dim, channels, tokens


def problem(dim, n_channels, n_tokens):
    rng = np.random.default_rng([dim, n_channels, n_tokens])

    def normal(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    a = -np.exp(rng.uniform(-3, 1.5, (dim, n_channels))).astype(np.float32)
    dt = rng.uniform(0, 2, (n_tokens, n_channels)).astype(np.float32)
    return [normal(dim, n_channels), a, normal(n_tokens, dim), normal(n_tokens, dim), normal(n_tokens, n_channels), dt, normal(n_channels)]


def reference(state, a, b, c, x, dt, skip):
    state, out = state.astype(np.float64), []
    for t in range(len(x)):
        state = state * np.exp(dt[t].astype(np.float64) * a) + np.outer(b[t], x[t].astype(np.float64) * dt[t])
        out.append(c[t] @ state + skip * x[t])
    return np.concatenate([np.concatenate(out), state.reshape(-1)])


@pytest.mark.parametrize("shape", SHAPES)
def test_selective_scan(shape):
    arguments = problem(*shape)
    want = reference(*arguments)
    got = on_every_isa(lambda: np.concatenate([part.reshape(-1) for part in ops.selective_scan(*arguments)]))
    assert np.abs(got - want).max() < 2e-6 * np.abs(want).max() * shape[0] ** 0.5


@pytest.mark.parametrize("dim", [16, 20])
def test_selective_scan_however_it_is_cut(dim):
    state, a, b, c, x, dt, skip = problem(dim, 48, 50)
    whole, after = ops.selective_scan(state, a, b, c, x, dt, skip)
    at, parts = state, []
    for i, n in ((0, 1), (1, 3), (4, 33), (37, 13)):
        rows = slice(i, i + n)
        out, at = ops.selective_scan(at, a, b[rows], c[rows], x[rows], dt[rows], skip)
        parts.append(out)
    assert_same_bytes(np.concatenate(parts), whole)
    assert_same_bytes(at, after)
    for columns in (slice(0, 7), slice(7, 23), slice(23, 48)):  # some in registers, others not
        part = [np.ascontiguousarray(v[:, columns]) for v in (state, a, x, dt)]
        out, new = ops.selective_scan(*part[:2], b, c, *part[2:], skip[columns])
        assert_same_bytes(out, np.ascontiguousarray(whole[:, columns]))
        assert_same_bytes(new, np.ascontiguousarray(after[:, columns]))
