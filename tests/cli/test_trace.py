"""trace: what it counts, and that what it saves warms a cache without changing a byte."""

import json
import sys

import numpy as np
import pytest

from moeengine.cli import main
from moeengine.cli.trace import hit_rates
from tests.supply.models import cache_mb_of, run, write_model


def test_hit_rates_of_a_cache_in_miniature():
    chosen = np.array([[[0, 1], [0, 1], [2, 3], [0, 1]]], np.int32)  # one layer
    for policy in ("lru", "lfu"):
        assert hit_rates(chosen, 4, 0.5, policy).tolist() == [0, 1, 0, 0]  # room for two
        assert hit_rates(chosen, 4, 1.0, policy).tolist() == [0, 1, 0, 1]


def test_saved_experts_warm_a_cache(tmp_path, capsys):
    path, saved = write_model(tmp_path), tmp_path / "experts.json"
    assert main(["trace", "-m", str(path), "-p", "abc", "-n", "12", "--save", str(saved)]) == 0
    out = capsys.readouterr().out
    assert out.count("experts used") == 3 and "a cache of 25 % of the experts (lru) holds" in out
    experts = json.loads(saved.read_text())["experts"]
    uses = [n for _, _, n in experts]
    assert uses == sorted(uses, reverse=True) and sum(uses) % (3 * 4) == 0
    settings = dict(n_prompt=5, n_decode=6, moe_mode="stream", cache_mb=cache_mb_of(path, 0.5))
    cold, _ = run(path, **settings)
    warm, stats = run(path, **settings, warm_experts=str(saved))
    assert np.array_equal(cold, warm)
    assert stats["supply"]["cache_used"] >= min(len(experts), 30)


def test_one_token_has_none_before_it(tmp_path, capsys):
    assert main(["trace", "-m", str(write_model(tmp_path)), "-p", "a", "-n", "0"]) == 0
    assert "nan" not in capsys.readouterr().out


def test_another_file_is_refused(tmp_path, capsys):
    path, other = write_model(tmp_path), tmp_path / "other.json"
    for text in ("", "[]", '{"experts": [1]}', "[" * 100_000, '{"experts": [[0, 99, 1]]}', '{"experts": [[9, 0, 1]]}'):
        other.write_text(text)
        command = ["generate", "-m", str(path), "-p", "a", "--moe-mode", "stream", "--warm-experts", str(other)]
        assert main(command) == 1
        assert "warm_experts" in capsys.readouterr().err


def test_a_plot(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib draws the plot, and is an extra")
    from matplotlib import image

    path, out = write_model(tmp_path), tmp_path / "out.png"
    assert main(["trace", "-m", str(path), "-p", "abc", "-n", "40", "--plot", str(out)]) == 0
    pixels = image.imread(out)
    assert pixels.shape[0] > 500 and pixels.shape[1] > 1000 and pixels[..., :3].std() > 0.1


def test_without_matplotlib_it_says_so_before_any_work(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["trace", "-m", str(tmp_path / "none"), "-p", "abc", "--plot", str(tmp_path / "out.png")]) == 1
    assert "found no matplotlib, expected it to be installed" in capsys.readouterr().err
