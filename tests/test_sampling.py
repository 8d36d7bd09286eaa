"""The sampler against a slow one written step by step, and the faults others had."""

import math
import time

import numpy as np
import pytest

from moeengine.config import SamplingParams
from moeengine.errors import ConfigError, NumericError
from moeengine.sampling import Sampler, best, candidates, token_logprob

N_VOCAB = 50


def make(history=(), n_vocab=N_VOCAB, n_ctx=100, **settings):
    return Sampler(SamplingParams(**settings), n_vocab, n_ctx, history)


def neutral(**settings):
    return SamplingParams(**{"top_k": 0, "top_p": 1, "min_p": 0, **settings})


def row(seed, n_vocab=N_VOCAB, scale=3.0):
    return (np.random.default_rng(seed).standard_normal(n_vocab) * scale).astype(np.float32)


def slow_candidates(logits, top_k, top_p, min_p):
    """One list, sorted; each step on its own, in the documented order."""
    kept = sorted(range(len(logits)), key=lambda i: (-float(logits[i]), i))
    if top_k:
        kept = kept[:top_k]
    weights = [math.exp(float(logits[i])) for i in kept]
    if top_p < 1:
        share, n, total = 0.0, 0, sum(weights)
        while n < len(kept) and share < top_p:
            share += weights[n] / total
            n += 1
        kept = kept[: max(n, 1)]
    if min_p > 0:
        kept = [i for i in kept if logits[i] >= logits[kept[0]] + math.log(min_p)]
    return kept


@pytest.mark.parametrize("top_k", [0, 1, 7, 49, 50, 51])
@pytest.mark.parametrize("top_p", [0, 0.3, 0.9, 1])
@pytest.mark.parametrize("min_p", [0, 0.05, 0.5, 1])
def test_candidates_equal_the_slow_way(top_k, top_p, min_p):
    for seed in range(20):
        logits = row(seed)
        params = SamplingParams(top_k=top_k, top_p=top_p, min_p=min_p)
        ids, x = candidates(logits, params)
        assert sorted(ids.tolist()) == sorted(slow_candidates(logits, top_k, top_p, min_p))
        assert np.array_equal(x, logits[ids])


def test_candidates_of_a_flat_row_need_more_than_the_first_sort():
    logits = row(1, 40_000, scale=0.01)
    ids, _ = candidates(logits, SamplingParams(top_k=0, top_p=0.9, min_p=0))
    assert 35_000 < len(ids) < 37_000
    assert sorted(ids) == sorted(slow_candidates(logits, 0, 0.9, 0))


def test_ties_go_to_the_lowest_id():
    x = np.array([1, 3, 3, 3, 0, 3], np.float32)
    assert best(x, 2).tolist() == [1, 2]
    assert best(x, 5).tolist() == [1, 2, 3, 5, 0]
    assert make(temperature=0, n_vocab=6).sample(x) == 1


@pytest.mark.parametrize("n", [1, 5, 40, 63, 64, 65, 1000, 39_999, 40_000])
def test_best_of_a_long_row(n):
    rng = np.random.default_rng(n)
    for x in (
        rng.standard_normal(40_000).astype(np.float32),
        rng.integers(0, 50, 40_000).astype(np.float32),  # ties everywhere
        np.where(rng.random(40_000) < 0.999, -np.inf, 1).astype(np.float32),
        np.arange(40_000, dtype=np.float32),  # the best in one block, and past the last whole one
    ):
        assert best(x, n).tolist() == np.lexsort((np.arange(len(x)), -x))[:n].tolist()


def test_greedy_ignores_the_cuts_and_the_seed():
    logits = row(3)
    tokens = {make(temperature=0, seed=s, top_k=5).sample(logits) for s in range(5)}
    assert tokens == {int(logits.argmax())}


def test_draws_follow_the_probabilities():
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))
    sampler = Sampler(neutral(temperature=1, seed=7), 4, 10)
    n = 20_000
    counts = np.bincount([sampler.sample(logits) for _ in range(n)], minlength=4)
    assert np.allclose(counts / n, [0.5, 0.3, 0.15, 0.05], atol=0.012)


def test_temperature_sharpens_after_the_cuts():
    logits = np.log(np.array([0.6, 0.4], np.float32))
    cold = Sampler(neutral(temperature=1e-12, seed=1), 2, 10)
    assert {cold.sample(logits) for _ in range(50)} == {0}
    hot = Sampler(neutral(temperature=1e6, seed=1, top_p=0.5), 2, 10)
    assert {hot.sample(logits) for _ in range(50)} == {0}  # top-p saw 0.6, not a flattened row


def test_equal_seeds_draw_equally_and_no_seed_varies():
    logits = row(5)
    draws = [[make(seed=s).sample(logits) for _ in range(1)] for s in (9, 9)]
    assert draws[0] == draws[1]
    a, b = make(seed=9, temperature=1.7), make(seed=9, temperature=1.7)
    assert [a.sample(logits) for _ in range(30)] == [b.sample(logits) for _ in range(30)]
    assert len({make().seed for _ in range(8)}) == 8


def test_the_random_stream_is_pinned():
    """A release must not change what a seed gives."""
    sampler = Sampler(neutral(temperature=1, seed=42), 1000, 10)
    flat = np.zeros(1000, np.float32)
    first = [sampler.sample(flat) for _ in range(5)]
    raw = np.random.Philox(key=42)
    assert first == [int((raw.random_raw() >> 11) * 2.0**-53 * 1000) for _ in range(5)]


def test_repeat_penalty_makes_repeats_less_likely_whatever_the_sign():
    x = np.array([2.0, -2.0, 1.0, -1.0], np.float32)
    sampler = Sampler(SamplingParams(repeat_penalty=2.0), 4, 10, history=[0, 1])
    assert sampler._adjusted(x).tolist() == [1.0, -4.0, 1.0, -1.0]
    assert x.tolist() == [2.0, -2.0, 1.0, -1.0]


def test_frequency_counts_and_presence_does_not():
    x = np.zeros(3, np.float32)
    params = SamplingParams(frequency_penalty=0.5, presence_penalty=0.25)
    assert Sampler(params, 3, 10, [0, 0, 1])._adjusted(x).tolist() == [-1.25, -0.75, 0.0]


@pytest.mark.parametrize(
    "last_n, penalized",
    [(0, []), (1, [4]), (3, [2, 3, 4]), (100, [0, 1, 2, 3, 4]), (-1, [1, 2, 3, 4])],
)
def test_the_window_is_the_last_n(last_n, penalized):
    params = SamplingParams(presence_penalty=1.0, repeat_last_n=last_n)
    sampler = Sampler(params, 6, n_ctx=4, history=[0, 1, 2, 3, 4])
    adjusted = sampler._adjusted(np.zeros(6, np.float32))
    assert np.flatnonzero(adjusted).tolist() == penalized


def test_what_was_drawn_joins_the_window():
    params = SamplingParams(temperature=0, presence_penalty=10.0, repeat_last_n=2)
    sampler = Sampler(params, 3, 10)
    logits = np.array([3, 2, 1], np.float32)
    assert [sampler.sample(logits) for _ in range(6)] == [0, 1, 2, 0, 1, 2]


def test_bias_bans_and_forces():
    logits = row(2)
    top = int(logits.argmax())
    assert make(temperature=0, logit_bias={top: -math.inf}).sample(logits) != top
    assert make(temperature=0, logit_bias={11: 1000}).sample(logits) == 11
    with pytest.raises(ConfigError, match="logit_bias.*50.*below 50"):
        make(logit_bias={50: 1.0})


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize(
    "logits, words",
    [
        ([-math.inf] * 4, "-inf for every token"),
        ([0, math.nan, 0, 0], "NaN for token 1"),
        ([0, -math.inf, math.inf, 0], r"\+inf for token 2"),
    ],
)
def test_logits_nobody_can_draw_from(temperature, logits, words):
    sampler = make(n_vocab=4, temperature=temperature)
    with pytest.raises(NumericError, match=words):
        sampler.sample(np.array(logits, np.float32))


def test_banning_everything_is_a_typed_error():
    sampler = make(n_vocab=2, logit_bias={0: -math.inf, 1: -math.inf})
    with pytest.raises(NumericError, match="every token"):
        sampler.sample(np.zeros(2, np.float32))


def test_banned_tokens_are_never_drawn():
    logits = np.full(8, -math.inf, np.float32)
    logits[[2, 5]] = 0
    sampler = Sampler(neutral(temperature=1), 8, 10)
    assert {sampler.sample(logits) for _ in range(200)} == {2, 5}


def test_logprobs_are_float64_log_softmax_of_the_raw_logits():
    logits = row(8)
    x = logits.astype(np.float64)
    expected = x - np.log(np.exp(x).sum())
    got = token_logprob(logits, 17, 3)
    assert got.token == 17 and abs(got.logprob - expected[17]) < 1e-12 and got.logprob <= 0
    assert [t for t, _ in got.top] == np.argsort(-logits)[:3].tolist()
    assert all(abs(p - expected[t]) < 1e-12 for t, p in got.top)
    assert token_logprob(logits, 0, 0).top == ()
    assert len(token_logprob(logits, 0, 99).top) == N_VOCAB


@pytest.mark.parametrize(
    "settings", [{}, {"top_k": 0}, {"top_k": 0, "top_p": 1, "min_p": 0}, {"repeat_penalty": 1.1}]
)
def test_a_vocabulary_of_250_000_takes_milliseconds(settings):
    logits = row(4, 250_000)
    sampler = make(n_vocab=250_000, history=range(64), **settings)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        sampler.sample(logits)
        times.append(time.perf_counter() - start)
    assert min(times) < 0.05  # about 0.003 s here; a full sort of Python objects is over 0.1
