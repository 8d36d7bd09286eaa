"""Supply modes side by side: decode and prefill of one file, and the hit rate of each cache policy.

    pytest bench/bench_supply.py [--model FILE]      default: the small model that ships

Memory is not limited here, so this shows what a mode costs; `bench.pressure` shows what it gains.
"""

import numpy as np
import pytest

from moeengine import Engine
from moeengine.models import default_model_path
from moeengine.supply import available

N_PROMPT = 256
NOISE = 0.002  # of the hit rate: the policy may fall 64 hits behind before it has gained any


@pytest.fixture(scope="module")
def model(request):
    return request.config.getoption("--model") or default_model_path()


def tokens(n, n_vocab, seed):
    return np.random.default_rng(seed).integers(0, n_vocab, n).tolist()


@pytest.mark.parametrize("mode", available())
@pytest.mark.parametrize("n", [1, N_PROMPT])
def test_pass(benchmark, model, n_threads, mode, n, table):
    """One pass of n tokens after a prompt."""
    with Engine(model, n_ctx=1024, n_threads=n_threads, moe_mode=mode) as engine:
        session, n_vocab = engine.session(), engine.hparams.n_vocab
        session.eval(tokens(32, n_vocab, 1))
        depth, more = session.n_past, tokens(n, n_vocab, 2)

        def back():
            session.rewind(depth)

        benchmark.pedantic(session.eval, (more,), setup=back, rounds=7, warmup_rounds=2)
        benchmark.extra_info |= {"mode": mode, "n_tokens": n}
        table(f"{mode:14s} {n:4d} tokens  {n / benchmark.stats['median']:8.1f} tok/s")


def hit_rate(model, n_threads, policy, share):
    """Share of the experts that decode of three texts finds in a cache of `share` of all experts."""
    with Engine(model, n_ctx=512, n_threads=n_threads, moe_mode="stream", cache_mb=1e6) as engine:
        supply = engine.stats()["supply"]
        whole = supply["slab_bytes"] * supply["cache_slots"] / (supply["cache_slots"] + supply["ring_slots"])
    options = dict(moe_mode="stream", cache_mb=share * whole / 1e6, cache_policy=policy)
    with Engine(model, n_ctx=512, n_threads=n_threads, **options) as engine:
        for seed, text in enumerate(("Once upon a time", "The fox said", "In the village")):
            engine.complete(text, max_tokens=200, temperature=1, seed=seed, ignore_eos=True)
        decode = engine.stats()["supply"]["decode"]
    return decode["n_hits"] / (decode["n_hits"] + decode["n_misses"])


@pytest.mark.parametrize("share", [0.4, 0.6, 0.8])
def test_guarded_lfu_hits_at_least_as_often_as_lru(model, n_threads, share, table):
    lfu, lru = (hit_rate(model, n_threads, policy, share) for policy in ("lfu", "lru"))
    table(f"cache of {100 * share:.0f} %: hit rate lfu {lfu:.3f}, lru {lru:.3f}")
    assert lfu >= lru - NOISE
