"""`perplexity` and `bench`: what they compute, and what they refuse."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from moeengine import Engine
from moeengine.cli import bench, main
from moeengine.models import default_model_path
from tests.hybrid import write_hybrid

TEXT = "Once upon a time there was a little fox. The fox lived in the forest. " * 6


def perplexity_by_hand(n_ctx, first):
    with Engine(default_model_path(), n_ctx=n_ctx) as engine:
        tokens, bos, losses = engine.tokenize(TEXT), engine.tokenizer.bos_id, []
        for start in range(0, len(tokens) - n_ctx + 1, n_ctx):
            window = tokens[start : start + n_ctx]
            if engine.tokenizer.add_bos:
                window = [bos, *window[1:]]
            logits = engine.logits(window).astype(np.float64)
            p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
            losses += [-np.log(p[i, window[i + 1]]) for i in range(first, n_ctx - 1)]
    return np.exp(np.mean(losses)), len(losses)


@pytest.mark.parametrize("options, first", [((), 16), (("--from", "0"), 0), (("--from", "30"), 30)])
def test_perplexity(capsys, options, first):
    want, n_scored = perplexity_by_hand(32, first)
    assert main(["perplexity", "-p", TEXT, "-c", "32", "--json", *options]) == 0
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert last["perplexity"] == pytest.approx(want, rel=1e-6) and last["n_scored"] == n_scored
    assert main(["perplexity", "-p", TEXT, "-c", "32", *options]) == 0
    assert capsys.readouterr().out.startswith(f"perplexity {want:.4f} +- ")


@pytest.mark.parametrize("options, message", [
    (("-c", "4000"), "expected at least a window of 4000"), (("-c", "32", "--from", "32"), "expected 0 to 30"),
    (("-c", "32", "--stride", "0"), "stride: found 0"), (("-c", "32", "--from", "-1"), "found -1"),
    (("-c", "32", "--from", "31"), "expected 0 to 30"), (("-c", "1"), "expected at least 2"),
])  # fmt: skip
def test_perplexity_refuses(capsys, options, message):
    assert main(["perplexity", "-p", TEXT, *options]) == 1
    assert message in capsys.readouterr().err


def test_bench_runs_every_test(capsys):
    assert main(["bench", "-p", "8", "20", "-n", "3", "-d", "0", "5", "-r", "2", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [r["test"] for r in rows] == ["prefill 8", "prefill 20", "decode at 0", "decode at 5"]
    assert all(len(r["tok_s"]) == 2 and min(r["tok_s"]) > 0 for r in rows)
    assert main(["bench", "-p", "-n", "2", "-r", "1"]) == 0
    assert "decode at 0" in capsys.readouterr().out


def test_bench_times_nothing_but_its_tokens(tmp_path, monkeypatch):
    """A clock that counts tokens: a recurrent state, which cannot be taken back, is computed again before a round."""
    tiny = write_hybrid(tmp_path / "m.gguf", "qwen35moe")
    with Engine(tiny.path, n_ctx=64) as engine:
        counters = engine._runtime.counters
        clock = SimpleNamespace(perf_counter=lambda: counters.n_prefill_tokens + counters.n_decode_tokens)
        monkeypatch.setattr(bench, "time", clock)
        assert [rates for _, _, rates in bench.measure(engine, [20], 3, [0, 40], 3)] == [[1.0] * 3] * 3


@pytest.mark.parametrize("options, message", [
    (("-p", "0"), "prefill: found 0"), (("-d", "-1"), "depth: found -1"), (("-r", "0"), "rounds: found 0"),
    (("-n", "-2"), "decode: found -2"), (("-c", "10", "-p", "11", "-n", "0"), "found 11 tokens to run, expected at most 10"),
])  # fmt: skip
def test_bench_refuses(capsys, options, message):
    assert main(["bench", *options]) == 1
    assert message in capsys.readouterr().err
