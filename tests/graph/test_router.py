"""Choice of experts against an independent NumPy version."""

import numpy as np
import pytest

from moeengine.errors import ConfigError
from moeengine.graph.router import route


def expected(logits, k, gating, norm_topk, scale, bias):
    x = logits.astype(np.float64)
    if gating == "softmax":
        p = np.exp(x - x.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
    elif gating == "sigmoid":
        p = 1 / (1 + np.exp(-x))
    else:
        p = x
    ids = np.argsort(-(p + (0 if bias is None else bias)), axis=-1, kind="stable")[:, :k]
    w = np.take_along_axis(p, ids, -1)
    if gating == "softmax_topk":
        w = np.exp(w - w.max(-1, keepdims=True))
        w /= w.sum(-1, keepdims=True)
    elif gating == "sigmoid_topk":
        w = 1 / (1 + np.exp(-w))
    if norm_topk:
        w = w / np.maximum(w.sum(-1, keepdims=True), 6.103515625e-5)
    return ids, w * scale


@pytest.mark.parametrize("n_group, n_used", [(2, 1), (4, 2), (8, 4), (8, 8)])
def test_groups(n_group, n_used):
    """Experts come from the groups whose two best have the largest sums, bias and all."""
    rng = np.random.default_rng(3)
    logits, bias = rng.standard_normal((50, 32)).astype(np.float32), rng.standard_normal(32).astype(np.float32)
    scores = (1 / (1 + np.exp(-logits.astype(np.float64))) + bias).reshape(50, n_group, -1)
    best = np.argsort(-np.sort(scores, -1)[..., -2:].sum(-1), -1)[:, :n_used]
    allowed = np.full((50, n_group, 1), -np.inf)
    np.put_along_axis(allowed, best[..., None], 0, 1)
    want = np.argsort(-(scores + allowed).reshape(50, 32), -1)[:, :4]
    ids, _ = route(logits, 4, gating="sigmoid", select_bias=bias, n_group=n_group, n_group_used=n_used)
    assert (ids == want).all()


@pytest.mark.parametrize("n_group, n_used, k", [(5, 1, 1), (32, 8, 1), (4, 0, 1), (4, 5, 1), (4, 1, 9), (128, 1, 1)])
def test_groups_that_cannot_be(n_group, n_used, k):
    with pytest.raises(ConfigError, match="group"):
        route(np.zeros((1, 32)), k, n_group=n_group, n_group_used=n_used)


@pytest.mark.parametrize("gating", ["softmax", "sigmoid", "softmax_topk", "sigmoid_topk"])
@pytest.mark.parametrize("norm_topk", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_every_count(gating, norm_topk, biased):
    rng = np.random.default_rng(7)
    for X in [*range(1, 34), 60, 160, 384, 896]:
        for k in {1, min(2, X), max(1, X // 2), min(X, 16)}:
            logits = rng.standard_normal((3, X)).astype(np.float32)
            bias = rng.standard_normal(X).astype(np.float32) if biased else None
            ids, weights = route(logits, k, gating=gating, norm_topk=norm_topk, scale=2.5, select_bias=bias)
            want_ids, want = expected(logits, k, gating, norm_topk, 2.5, bias)
            assert (ids == want_ids).all()
            np.testing.assert_allclose(weights, want, rtol=2e-5)


def test_ties_go_to_the_lower_id():
    ids, weights = route(np.zeros((1, 10), np.float32), 4)
    assert ids.tolist() == [[0, 1, 2, 3]]
    np.testing.assert_allclose(weights, 0.25)


def test_close_scores_are_told_apart():
    logits = np.zeros((1, 16), np.float32)
    logits[0, 11] = np.float32(1e-6)
    assert route(logits, 1)[0].tolist() == [[11]]


def test_logits_are_told_apart_where_their_sigmoids_are_not():
    ids, weights = route(np.array([[20, 40, 30]], np.float32), 1, gating="sigmoid_topk", norm_topk=False)
    assert ids.tolist() == [[1]] and weights.tolist() == [[1]]


def test_tiny_sums_are_clamped():
    logits = np.full((1, 4), -40.0, np.float32)
    _, weights = route(logits, 2, gating="sigmoid", norm_topk=True)
    assert weights.sum() < 1e-10  # divided by 6.1e-5, not by their sum of 8e-18


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_not_a_number_is_refused(bad):
    logits = np.zeros((2, 8), np.float32)
    logits[1, 3] = bad
    with pytest.raises(ConfigError, match="token 1"):
        route(logits, 2)


def test_arguments():
    with pytest.raises(ConfigError, match="1 to 4"):
        route(np.zeros((1, 4), np.float32), 5)
    with pytest.raises(ConfigError, match="gating"):
        route(np.zeros((1, 4), np.float32), 2, gating="random")
