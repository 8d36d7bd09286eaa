"""Prefill and decode of a whole model through Session.eval, on a synthesized file or --model."""

from statistics import median

import numpy as np
import pytest

from bench import report
from bench.compare import difference
from bench.peers import ours
from bench.shapes import PRESETS
from bench.synth import synthesize
from moeengine import Engine

ROUNDS = 5
# Stock's own logits of these random weights differ by 1e-3 to 4e-3 with the batch size.
MAX_KL = 2e-2


@pytest.fixture(scope="module", params=["iq2_xxs", "q4_k_m"])
def model(request, tmp_path_factory):
    """Path of the file under test; --model replaces both synthesized ones."""
    given = request.config.getoption("--model")
    if given:
        if request.param != "iq2_xxs":
            pytest.skip("one file was given")
        return given
    path = str(tmp_path_factory.mktemp("model") / f"{request.param}.gguf")
    synthesize(path, PRESETS["small"], request.param)
    return path


@pytest.fixture
def session(model, n_threads):
    with Engine(model, n_ctx=1024, n_threads=n_threads) as engine:
        yield engine.session()


def tokens(n, n_vocab=8000, seed=3):
    return np.random.default_rng(seed).integers(0, n_vocab, n).tolist()


@pytest.mark.parametrize("n", [32, 512])
def test_prefill(benchmark, session, n, table, request):
    """A prompt of n tokens on an empty context."""

    def empty():
        session.rewind(0)

    benchmark.pedantic(session.eval, (tokens(n),), setup=empty, rounds=ROUNDS, warmup_rounds=1)
    _note(benchmark, n, f"prefill {n}", table, request)


@pytest.mark.parametrize("depth", [1, 512])
def test_decode(benchmark, session, depth, table, request):
    """16 tokens, one a call, after `depth` others."""
    session.eval(tokens(depth))
    following = tokens(16, seed=5)

    def back():
        session.rewind(depth)

    def decode():
        for token in following:
            session.eval([token])

    benchmark.pedantic(decode, setup=back, rounds=ROUNDS, warmup_rounds=1)
    _note(benchmark, len(following), f"decode at {depth}", table, request)


def test_against_stock(model, n_threads, stock_peer, table, tmp_path):
    """Speed in interleaved rounds and equal logits; needs --stock."""
    if stock_peer is None:
        pytest.skip("no --stock")
    with ours().start() as us, stock_peer.start() as them:
        for client in (us, them):
            client.do("load", path=model, n_ctx=1024, n_threads=n_threads)
        _same_logits(us, them, table, tmp_path)
        for command, n in (("prefill", 512), ("decode", 32)):
            text = tokens(n)
            for client in (us, them):
                client.do("fill", tokens=text[:8])
                client.do(command, tokens=text)
            rates = [
                [n / client.do(command, tokens=text) for client in (us, them)] for _ in range(ROUNDS)
            ]
            mine, theirs = zip(*rates)
            ratio = report.ratios(mine, theirs)["median"]
            table(
                f"{command:8s} {n:4d}  ours {median(mine):8.1f} tok/s  stock {median(theirs):8.1f}  "
                f"ratio {ratio:.2f}"
            )


def _same_logits(us, them, table, folder):
    text, saved = tokens(32, seed=7), {}
    for client in (us, them):
        path = str(folder / "logits.npy")
        client.do("logits", tokens=text, save_to=path)
        saved[client] = np.load(path)
    d = difference(saved[them], saved[us])
    table(f"logits: KL median {d['kl_median']:.1e}, same arg-max {100 * d['same_argmax']:.0f} %")
    assert d["kl_median"] < MAX_KL


def _note(benchmark, n, what, table, request):
    rate = n / benchmark.stats.stats.median
    benchmark.extra_info["tok/s"] = rate
    table(f"{request.node.callspec.params.get('model', 'model'):8s} {what:12s} {rate:8.1f} tok/s")
