"""Kernels of recurrent layers: every instruction set gives the same bytes, close to float64 NumPy; no split shows."""

import numpy as np
import pytest

from moeengine.kernels import testing as ops

from .isas import assert_same_bytes, on_every_isa

SHAPES = [(1, 1, 1), (4, 16, 3), (5, 20, 40), (8, 64, 33), (3, 100, 7), (7, 128, 70), (2, 144, 5)]  # rows, dim, tokens


def problem(n_rows, dim, n_tokens, seed=0):
    rng = np.random.default_rng([n_rows, dim, n_tokens, seed])

    def normal(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    q, k = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (normal(n_tokens, dim), normal(n_tokens, dim)))
    decay, beta = (rng.uniform(low, 1, n_tokens).astype(np.float32) for low in (0.8, 0.0))
    return [normal(n_rows, dim), q, k, normal(n_tokens, n_rows), decay, beta, np.float32(dim**-0.5)]


def by_element(arguments):
    """The same problem with a rate for each element of a key."""
    rng = np.random.default_rng(arguments[1].shape)
    return [*arguments[:4], rng.uniform(0.6, 1, arguments[1].shape).astype(np.float32), *arguments[5:]]


def both(*arguments):
    """Results and state in one array, as on_every_isa compares one."""
    return np.concatenate([part.reshape(-1) for part in ops.delta_rule(*arguments)])


def reference(state, q, k, v, decay, beta, scale):
    state, out = state.astype(np.float64), []
    for t in range(len(q)):
        state = state * decay[t]
        state = state + np.outer((v[t] - state @ k[t]) * beta[t], k[t])
        out.append(state @ q[t] * scale)
    return np.concatenate([np.concatenate(out), state.reshape(-1)])


@pytest.mark.parametrize("rates", [list, by_element])
@pytest.mark.parametrize("shape", SHAPES)
def test_delta_rule(shape, rates):
    arguments = rates(problem(*shape))
    got = on_every_isa(lambda: both(*arguments))
    assert np.abs(got - reference(*arguments)).max() < 1e-5


@pytest.mark.parametrize("rates", [list, by_element])
@pytest.mark.parametrize("dim", [64, 100, 128])
def test_delta_rule_however_it_is_cut(dim, rates):
    state, q, k, v, decay, beta, scale = rates(problem(7, dim, 50))
    whole, after = ops.delta_rule(state, q, k, v, decay, beta, scale)
    at, parts = state, []
    for i, n in ((0, 1), (1, 3), (4, 33), (37, 13)):
        rows = slice(i, i + n)
        out, at = ops.delta_rule(at, q[rows], k[rows], v[rows], decay[rows], beta[rows], scale)
        parts.append(out)
    assert_same_bytes(np.concatenate(parts), whole)
    assert_same_bytes(at, after)
    for rows in (slice(0, 1), slice(1, 4), slice(4, 7)):
        out, part = ops.delta_rule(state[rows], q, k, np.ascontiguousarray(v[:, rows]), decay, beta, scale)
        assert_same_bytes(out, np.ascontiguousarray(whole[:, rows]))
        assert_same_bytes(part, after[rows])


@pytest.mark.parametrize("rates", [list, by_element])
def test_rows_in_registers_and_in_memory_are_the_same_bytes(rates):
    """128 has code of its own; zeros behind it add nothing to any sum."""
    state, q, k, v, decay, beta, scale = rates(problem(5, 128, 40))
    whole, after = ops.delta_rule(state, q, k, v, decay, beta, scale)
    if decay.ndim == 2:
        decay = np.pad(decay, ((0, 0), (0, 16)))
    longer = [np.pad(x, ((0, 0), (0, 16))) for x in (state, q, k)]
    out, new = ops.delta_rule(*longer, v, decay, beta, scale)
    assert_same_bytes(out, whole)
    assert_same_bytes(np.ascontiguousarray(new[:, :128]), after)


@pytest.mark.parametrize("n", [1, 15, 16, 17, 128, 200])
@pytest.mark.parametrize("n_taps", [1, 4, 5])
def test_conv_silu(n, n_taps):
    rng = np.random.default_rng([n, n_taps])
    x, w = (rng.standard_normal((n_taps, n)).astype(np.float32) for _ in range(2))
    sums = (x.astype(np.float64) * w).sum(0)
    assert np.abs(on_every_isa(lambda: ops.conv_silu(x, w)) - sums / (1 + np.exp(-sums))).max() < 2e-6


@pytest.mark.parametrize("n", [1, 15, 16, 17, 128, 200])
@pytest.mark.parametrize("n_taps", [2, 3, 5])
def test_conv_mul(n, n_taps):
    rng = np.random.default_rng([n, n_taps])
    x, w = (rng.standard_normal((n_taps, n)).astype(np.float32) for _ in range(2))
    gate = rng.standard_normal(n).astype(np.float32)
    want = gate * (x.astype(np.float64) * w).sum(0)
    assert np.abs(on_every_isa(lambda: ops.conv_mul(x, w, gate)) - want).max() < 4e-6


@pytest.mark.parametrize("n", [1, 16, 37])
def test_sigmoid_mul(n):
    gate, x = np.random.default_rng(n).standard_normal((2, n)).astype(np.float32) * 5
    got = on_every_isa(lambda: ops.sigmoid_mul(gate, x))
    want = x / (1 + np.exp(-gate.astype(np.float64)))
    assert (np.abs(got - want) <= 3e-7 * np.abs(want)).all()
    assert ops.sigmoid_mul(np.float32([-200, 200]), np.float32([1, 1])).tolist() == [0, 1]
