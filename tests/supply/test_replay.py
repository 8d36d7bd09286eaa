"""Cache policies on recorded and made-up routing: rarity never has fewer hits than LRU."""

from pathlib import Path

import numpy as np
import pytest

from moeengine.supply.replay import Replay

RECORDED = Path(__file__).parent / "fixtures" / "tales-routing.npz"
SHARES = [0.13, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95]


def hits(chosen, n_expert, n_slots, policy):
    """Hits in all, and evictions that LRU would not have made."""
    replay = Replay(chosen.shape[0], n_expert, chosen.shape[2], n_slots, policy)
    return int(replay.run(chosen).sum()), replay.n_departures


def slow_lru(chosen, n_expert, n_slots):
    """An LRU over (layer, expert) in Python, where experts of the running layer stay."""
    held, found = {}, 0
    for t in range(chosen.shape[1]):
        for layer in range(chosen.shape[0]):
            used = [(layer, int(ie)) for ie in chosen[layer, t]]
            found += sum(key in held for key in used)
            for key in used:
                held[key] = held.pop(key, None)  # newest
            while len(held) > n_slots:
                del held[next(iter(held))]
    return found


def zipf(n_tokens, n_layers, n_expert, n_used, exponent, repeat, seed):
    """int32 (L, T, A): skewed choices in an order of each layer's own; each stays with probability `repeat`."""
    rng = np.random.default_rng(seed)
    weights = 1 / np.arange(1, n_expert + 1) ** exponent
    orders = [rng.permutation(n_expert) for _ in range(n_layers)]
    out = np.zeros((n_layers, n_tokens, n_used), np.int32)
    for t in range(n_tokens):
        for layer in range(n_layers):
            chosen = [] if t == 0 else [x for x in out[layer, t - 1] if rng.random() < repeat]
            while len(chosen) < n_used:
                x = orders[layer][rng.choice(n_expert, p=weights / weights.sum())]
                if x not in chosen:
                    chosen.append(x)
            out[layer, t] = chosen
    return out


@pytest.fixture(scope="module")
def recorded():
    """Routing of the shipped model over three tales of 400 tokens: int32 (4, 1208, 2), 16 experts a layer."""
    return np.load(RECORDED)["chosen"].astype(np.int32)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_lru_is_an_lru(recorded, share):
    n_slots = int(share * 64)
    assert hits(recorded[:, :300], 16, n_slots, "lru")[0] == slow_lru(recorded[:, :300], 16, n_slots)


@pytest.mark.parametrize("share", SHARES)
def test_never_below_lru_on_a_recorded_trace(recorded, share):
    for part in (recorded, recorded[:, :403], recorded[:, 403:806], recorded[:, ::2]):
        part = np.ascontiguousarray(part)
        assert hits(part, 16, int(share * 64), "lfu")[0] >= hits(part, 16, int(share * 64), "lru")[0]


def test_better_than_lru_where_memory_is_short(recorded):
    for n_slots, gain in ((13, 1.2), (19, 1.05)):
        (lfu, departures), (lru, _) = (hits(recorded, 16, n_slots, policy) for policy in ("lfu", "lru"))
        assert departures > 0 and lfu > gain * lru


@pytest.mark.parametrize("exponent, repeat", [(0.8, 0), (0.8, 0.3), (0.8, 0.5), (1.1, 0.5)])
def test_never_below_lru_on_made_up_traces(exponent, repeat):
    chosen = zipf(300, 8, 64, 4, exponent, repeat, seed=1)
    gains = []
    for share in SHARES:
        n_slots = int(share * 8 * 64)
        (lfu, _), (lru, _) = (hits(chosen, 64, n_slots, policy) for policy in ("lfu", "lru"))
        assert lfu >= lru
        gains.append(lfu / lru)
    assert max(gains) > 1.05


def test_what_an_adversary_can_cost_is_bounded():
    """Skewed routing earns trust; then the favourites change for good, again and again."""
    parts = [zipf(120, 4, 64, 4, 1.2, 0.2, seed) for seed in range(6)]
    even = zipf(120, 4, 64, 4, 0, 0, seed=9)
    for chosen in (even, *(np.concatenate(parts[:n], axis=1) for n in (1, 2, 6))):
        for n_slots in (40, 90, 150):
            assert hits(chosen, 64, n_slots, "lfu")[0] >= hits(chosen, 64, n_slots, "lru")[0] - 64


def test_choices_outside_the_model_are_refused():
    for bad in (16, -2):
        with pytest.raises(ValueError, match=f"found {bad}"):
            Replay(1, 16, 1, 4).run(np.full((1, 1, 1), bad, np.int32))
    assert Replay(1, 16, 2, 4).run(np.array([[[3, -1], [3, -1]]], np.int32)).tolist() == [0, 1]
