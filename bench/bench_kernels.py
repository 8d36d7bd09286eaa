"""Matrix products a quant type: GB/s of weights with one row (decode), GMAC/s with many (prefill).

With --stock a Python that has llama-cpp-python, each product is also run by stock's CPU backend in
interleaved rounds, and the ratio is the median over rounds. Both sides keep their threads from product to product, and before
each timed one the same runs untimed for WARM_S: threads are awake then and each on a processor of its own, as they are in a
forward pass. Waking them takes as long as four rows, and for some milliseconds both may share a processor.
"""

import time
from statistics import median

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Q

from bench import report
from bench.bandwidth import buffer_bytes, read_bandwidth
from bench.random_blocks import random_blocks
from moeengine import kernels
from moeengine.kernels.products import mul_mat_rows
from moeengine.kernels.threads import Team

N_COLS = 2048
PREFILL_ROWS = 3072  # of weights: 4 experts' worth of Qwen3-30B-A3B
PREFILL_TOKENS = (4, 32, 128, 512)
RATIO_ROUNDS = 5
WARM_S = 0.05


def pytest_generate_tests(metafunc):
    if "name" in metafunc.fixturenames:
        chosen = metafunc.config.getoption("--types")
        names = chosen.upper().split(",") if chosen else list(kernels.quant_types())
        metafunc.parametrize("name", names)


def weights(name: str, n_rows: int) -> np.ndarray:
    """uint8 (n_rows, bytes) of random valid blocks, N_COLS weights a row."""
    block = gguf.GGML_QUANT_SIZES[Q[name]][0]
    rng = np.random.Generator(np.random.SFC64(1))
    return random_blocks(Q[name], n_rows * N_COLS // block, 0.02, rng).reshape(n_rows, -1)


def activations(n_tokens: int) -> np.ndarray:
    """float32 (n_tokens, N_COLS), standard normal."""
    return np.random.default_rng(2).standard_normal((n_tokens, N_COLS)).astype(np.float32)


@pytest.fixture(scope="module")
def team(n_threads) -> Team:
    return Team(n_threads)


def product(raw, name, x, team):
    """A function that multiplies without arguments and returns float32 (T, R), the same array each time."""
    out, type_id = np.empty((x.shape[0], raw.shape[0]), np.float32), int(Q[name])

    def multiply():
        mul_mat_rows(raw, type_id, x, out, team)
        return out

    return multiply


def after_warming(multiply) -> float:
    """Seconds of one product after others that took WARM_S."""
    start = now = time.perf_counter()
    while now - start < WARM_S:
        multiply()
        now = time.perf_counter()
    multiply()
    return time.perf_counter() - now


def test_decode(benchmark, name, n_threads, team, stock_product, table):
    """One activation row against more weights than any cache holds."""
    block, block_bytes = gguf.GGML_QUANT_SIZES[Q[name]]
    raw = weights(name, buffer_bytes() // (N_COLS // block * block_bytes))
    x = activations(1)
    multiply = product(raw, name, x, team)
    after_warming(multiply)
    benchmark.pedantic(multiply, rounds=7, warmup_rounds=1)
    rate = raw.nbytes / 1e9 / benchmark.stats.stats.median
    ceiling = read_bandwidth(n_threads)[1]
    benchmark.extra_info |= {"GB/s": rate, "memory GB/s": ceiling, "isa": kernels.isa()["active"]}
    line = f"{name:8s} decode           {rate:7.1f} GB/s of {ceiling:.1f}"
    table(line + stock_product(multiply, name, raw, x, raw.nbytes / 1e9, "GB/s"))


@pytest.mark.parametrize("n_tokens", PREFILL_TOKENS)
def test_prefill(benchmark, name, n_tokens, team, stock_product, table):
    """Many activation rows against the weights of a few experts."""
    raw, x = weights(name, PREFILL_ROWS), activations(n_tokens)
    multiply = product(raw, name, x, team)
    after_warming(multiply)
    benchmark.pedantic(multiply, rounds=7, warmup_rounds=1)
    work = PREFILL_ROWS * N_COLS * n_tokens / 1e9
    rate = work / benchmark.stats.stats.median
    benchmark.extra_info |= {"GMAC/s": rate, "isa": kernels.isa()["active"]}
    line = f"{name:8s} prefill {n_tokens:4d} rows {rate:7.1f} GMAC/s"
    table(line + stock_product(multiply, name, raw, x, work, "GMAC/s"))


@pytest.fixture(scope="module")
def stock_client(stock_peer):
    if stock_peer is None or not hasattr(stock_peer, "module"):
        yield None
        return
    with stock_peer.start() as client:
        yield client


@pytest.fixture
def stock_product(stock_client, n_threads, tmp_path):
    """A function that runs stock in turn with ours and returns the words for the table."""

    def compare(multiply, name, raw, x, work, unit) -> str:
        if stock_client is None:
            return ""
        paths = {"raw": str(tmp_path / "raw.npy"), "x": str(tmp_path / "x.npy")}
        np.save(paths["raw"], raw)
        np.save(paths["x"], x)
        stock_client.do("matrix", type_id=int(Q[name]), n_threads=n_threads, **paths)
        stock_client.do("multiply", save_to=str(tmp_path / "out.npy"))
        ours, theirs = [], []
        for _ in range(RATIO_ROUNDS):
            ours.append(work / after_warming(multiply))
            theirs.append(work / stock_client.do("multiply", warm_s=WARM_S))
        out, ref = multiply(), np.load(tmp_path / "out.npy")
        error = float(np.abs(out - ref).max() / np.abs(ref).max())
        ratio = report.ratios(ours, theirs)["median"]
        return f"  stock {median(theirs):7.1f} {unit}  ratio {ratio:.2f}  difference {error:.0e}"

    return compare
