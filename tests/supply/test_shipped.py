"""The model that ships: the same logits and the same text in every mode, cache size and place of the weights."""

import numpy as np
import pytest

from moeengine import Engine
from moeengine.models import default_model_path
from moeengine.supply import available

PROMPT, N_TEXT = "Once upon a time there was a fox who", 60
CACHE = dict(moe_mode="stream", dense_weights="anon", force_cache=True)
SETTINGS = {
    **{mode: dict(moe_mode=mode) for mode in available()},
    "no cache": CACHE | dict(cache_mb=0),
    "a cache of one token": CACHE | dict(cache_mb=0.6),
    "half the experts, LRU": CACHE | dict(cache_mb=2.4, cache_policy="lru", io_threads=1),
    "half the experts, read ahead": CACHE | dict(cache_mb=2.4, prefetch_layers=3, io_threads=8),
    "without a mapping": CACHE | dict(cache_mb=2.4, release_mmap=True),
    "sweep by advice": dict(moe_mode="sweep-prefill", sweep_method="advice", sweep_min_tokens=2),
    "sweep by a ring": dict(moe_mode="sweep-prefill", sweep_method="direct", sweep_min_tokens=2, dense_weights="warm"),
    "small chunks": CACHE | dict(cache_mb=1.2, n_ubatch=5),
    "one thread": dict(moe_mode="prefetch", prefetch_method="read", n_threads=1),
}


def run(**settings):
    with Engine(default_model_path(), n_ctx=256, **{"n_threads": 2} | settings) as engine:
        text = engine.generate(PROMPT, max_tokens=N_TEXT, temperature=0, ignore_eos=True)
        logits = engine.logits(engine.tokenize(PROMPT + text))
        return text, logits, engine.stats()


@pytest.fixture(scope="module")
def expected():
    return run(moe_mode="mmap")[:2]


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_the_same_text_and_logits(expected, settings):
    text, logits, stats = run(**settings)
    assert text == expected[0] and len(text) > N_TEXT
    assert np.array_equal(logits, expected[1])
    supply = stats["supply"]
    if stats["moe_mode"] == "stream":
        assert supply["reader_bytes_read"] > 0
        if 1 < settings.get("cache_mb", 100) < 3:  # a smaller one leaves all to the ring
            assert supply["n_evicted"] > 0
    if "release_mmap" in settings:
        assert stats["mapping_released"]
    if settings.get("sweep_method") == "advice":
        assert supply["bytes_advised"] > supply["bytes_dropped"] > 0
    if settings.get("sweep_method") == "direct":
        assert supply["prefill"]["bytes_read"] > 0
