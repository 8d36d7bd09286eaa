"""trace: what it counts, and that what it saves warms a cache without changing a byte."""

import json

import numpy as np

from moeengine.cli import main
from moeengine.cli.trace import hit_rates
from tests.supply.models import cache_mb_of, run, write_model


def test_hit_rates_of_a_cache_in_miniature():
    chosen = np.array([[[0, 1], [0, 1], [2, 3], [0, 1]]], np.int32)  # one layer
    assert hit_rates(chosen, 4, 0.5).tolist() == [0, 1, 0, 0]  # room for two
    assert hit_rates(chosen, 4, 1.0).tolist() == [0, 1, 0, 1]


def test_saved_experts_warm_a_cache(tmp_path, capsys):
    path, saved = write_model(tmp_path), tmp_path / "experts.json"
    assert main(["trace", "-m", str(path), "-p", "abc", "-n", "12", "--save", str(saved)]) == 0
    out = capsys.readouterr().out
    assert out.count("experts used") == 3 and "LRU cache of 25 %" in out
    experts = json.loads(saved.read_text())["experts"]
    uses = [n for _, _, n in experts]
    assert uses == sorted(uses, reverse=True) and sum(uses) % (3 * 4) == 0
    settings = dict(n_prompt=5, n_decode=6, moe_mode="stream", cache_mb=cache_mb_of(path, 0.5))
    cold, _ = run(path, **settings)
    warm, stats = run(path, **settings, warm_experts=str(saved))
    assert np.array_equal(cold, warm)
    assert stats["supply"]["cache_used"] >= min(len(experts), 30)


def test_another_file_is_refused(tmp_path, capsys):
    path, other = write_model(tmp_path), tmp_path / "other.json"
    for text in ("", "[]", '{"experts": [1]}'):
        other.write_text(text)
        command = ["generate", "-m", str(path), "-p", "a", "--moe-mode", "stream", "--warm-experts", str(other)]
        assert main(command) == 1
        assert "warm_experts" in capsys.readouterr().err
