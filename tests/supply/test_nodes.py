"""moe_stats: a line a tensor of experts a pass, with what the pass did."""

import logging
import re

import pytest

from moeengine import Engine
from moeengine.cli import main
from tests.supply.models import N_EXPERT, N_LAYER, N_USED, prompt, write_model

LINE = re.compile(
    r"layer (\d+) (blk\.\d+\.ffn_\w+_exps\.weight) \((gate|up|down)\): (\d+) tokens, (\d+) of 64 experts used, "
    r"(\d+) bytes read, (\d+) advised, (\d+) dropped, waited (\d+\.\d+) ms"
)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("nodes"))


def lines_of(path, caplog, n_tokens, **settings):
    """Groups of LINE for the pass over n_tokens; numbers as float."""
    caplog.clear()
    with caplog.at_level(logging.INFO, "moeengine.nodes"):
        with Engine(path, n_ctx=200, n_threads=2, moe_stats=True, **settings) as engine:
            engine.session().eval(prompt(n_tokens))
            total = engine.stats()["supply"]
    found = [LINE.fullmatch(r.getMessage()) for r in caplog.records if r.name == "moeengine.nodes"]
    assert len(found) == 3 * N_LAYER and all(found)
    assert [(int(m[1]), m[3]) for m in found] == [(il, part) for il in range(N_LAYER) for part in ("gate", "up", "down")]
    assert all(f"blk.{m[1]}.ffn_{m[3]}_exps.weight" == m[2] and int(m[4]) == n_tokens for m in found)
    return [[float(m[i]) for i in range(5, 10)] for m in found], total


@pytest.mark.parametrize("n_tokens", [1, 70])
def test_what_a_ring_read(path, caplog, n_tokens):
    rows, total = lines_of(path, caplog, n_tokens, moe_mode="stream", cache_mb=0)
    assert all(used == N_USED if n_tokens == 1 else N_USED < used <= N_EXPERT for used, *_ in rows)
    read = sum(row[1] for row in rows)
    assert 0 < read <= total["reader_bytes_read"]  # which is rounded to whole units
    assert all(row[2] == row[3] == 0 for row in rows)
    waited = sum(row[4] for row in rows)
    assert 0 < waited and waited == pytest.approx(1e3 * total["reader_thread_wait_s"], abs=0.02)


def test_what_was_advised_and_dropped(path, caplog):
    rows, total = lines_of(path, caplog, 70, moe_mode="sweep-prefill", sweep_method="advice")
    assert sum(row[2] for row in rows) == total["bytes_advised"] > 0
    assert sum(row[3] for row in rows) == total["bytes_dropped"] > 0
    assert all(row[1] == 0 and row[2] > row[3] > 0 for row in rows)


def test_modes_that_do_nothing_say_what_was_used(path, caplog):
    rows, _ = lines_of(path, caplog, 3, moe_mode="mmap")
    assert all(N_USED <= row[0] <= 3 * N_USED and not any(row[1:]) for row in rows)


def test_nothing_is_logged_unless_asked(path, caplog):
    with caplog.at_level(logging.INFO), Engine(path, n_ctx=64, moe_mode="stream", cache_mb=0) as engine:
        engine.session().eval(prompt(5))
    assert not [r for r in caplog.records if r.name == "moeengine.nodes"]


def test_on_the_command_line(path, capsys):
    args = ["generate", "-m", str(path), "-p", "abc", "-n", "2", "--moe-mode", "stream", "--cache-mb", "0"]
    assert main([*args, "--moe-stats"]) == 0
    assert len(re.findall(LINE, capsys.readouterr().err)) == 2 * 3 * N_LAYER  # the prompt and one token more
    assert main(args) == 0
    assert not re.search(LINE, capsys.readouterr().err)
