"""Layers with a sliding window keep the last positions only: the same bytes as if they kept all, and less memory."""

import numpy as np
import pytest

from moeengine import Engine
from moeengine.cli import main
from moeengine.errors import ConfigError
from moeengine.kernels.testing import KV_TILE
from moeengine.kernels.threads import Team
from tests.arch_models import ARCH_MODELS, write_arch
from tests.graph.test_reference import load
from tests.tiny import write_tiny

N_CTX = 3400
TOKENS = np.random.default_rng(5).integers(0, 60, N_CTX).astype(np.int32)
WINDOW = "attention.sliding_window"
# A recorded model of every architecture whose file names a window; lfm2 may. Not deepseek4, which keeps windows as a state, and
# smallthinker, whose window is 4096 whatever its file says.
WINDOWED = {model.arch: name for name, model in ARCH_MODELS.items() if WINDOW in model.metadata} | {"lfm2": "lfm2"}
WINDOWED = [name for arch, name in WINDOWED.items() if arch not in ("deepseek4", "smallthinker")]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return write_tiny(tmp_path_factory.mktemp("model") / "m.gguf", "gpt-oss", n_ctx=N_CTX)


def forward(context, n_past, n, outputs="last"):
    """Logits after tokens n_past .. n_past + n - 1, or None."""
    out = np.empty((1, context.model.hparams.n_vocab), np.float32)
    context.forward(TOKENS[n_past : n_past + n], n_past, outputs, out if outputs == "last" else None)
    return out.tobytes()


def new(model, n_ubatch=400, swa_full=False):
    return model.new_context(n_ctx=N_CTX, n_ubatch=n_ubatch, team=Team(2), swa_full=swa_full)


@pytest.mark.parametrize("name", WINDOWED)
def test_the_same_bytes_as_the_whole_cache(tmp_path, name):
    model = load(write_arch(tmp_path / "m.gguf", name, metadata={WINDOW: 40}))
    assert model.sizes.window_elements > 0 and model.sizes.window == 40
    a, b = new(model), new(model, swa_full=True)
    assert a.memory_bytes["kv"] == model.kv_bytes(N_CTX, 400) < b.memory_bytes["kv"] == model.kv_bytes(N_CTX)
    n_past = 0
    for n in (400, 1, 63, 1, 400, 37, *[400] * 5, 1, 1, 90):
        assert forward(a, n_past, n) == forward(b, n_past, n)
        n_past += n
    assert n_past > 2048 + 40 + 400  # the tiles were used more than once


def test_how_many_positions_can_be_taken_back(tiny):
    """At least 2048; from there on nothing is ready but the beginning."""
    context = new(load(tiny))
    for n_past in range(0, 3200, 400):
        forward(context, n_past, 400, "none")
    ready = [context.n_ready(n) == n for n in range(3201)]
    first = ready.index(True, 1)
    assert ready == [True] + [False] * (first - 1) + [True] * (3201 - first)
    assert 3200 - 2048 - 2 * KV_TILE < first <= 3200 - 2048
    assert context.n_ready(first - 1) == 0 and context.n_ready(10**6) == 3200
    with pytest.raises(ConfigError, match=f"n_past: found {first - 1}, expected 0: keys in the window before it are gone"):
        forward(context, first - 1, 1)
    whole = new(load(tiny), swa_full=True)
    for n_past in range(0, 3200, 400):
        forward(whole, n_past, 400, "none")
    for n_past in (3100, first + 1, first):
        assert forward(context, n_past, 7) == forward(whole, n_past, 7)
    assert context.n_ready(3200) == first + 7      # what came after it is of another timeline
    for n_past in range(0, 200, 50):
        assert forward(context, n_past, 50) == forward(whole, n_past, 50)
        assert context.n_ready(3200) == n_past + 50


def test_a_saved_timeline_has_the_windows_only(tiny):
    model = load(tiny)
    window = model.sizes.window
    for n_past in (1, window - 1, window, KV_TILE, 2799, 2800):
        a = new(model)
        for i in range(0, n_past, 400):
            forward(a, i, min(400, n_past - i), "none")
        state = a.kv_state(n_past)
        kept = min(n_past, window - 1)
        assert state.size == n_past * model.sizes.kv_elements + kept * model.sizes.window_elements
        for swa_full in (False, True):
            b = new(model, swa_full=swa_full)
            b.set_kv_state(state, n_past)
            assert np.array_equal(b.kv_state(n_past), state)
            assert b.n_ready(n_past - 1) == (n_past - 1 if n_past < window else 0)
            assert forward(b, n_past, 30) == forward(a, n_past, 30)
    with pytest.raises(ConfigError, match="KV state: found .* 2800 positions"):
        new(model).set_kv_state(state[:-1], 2800)


def test_sessions_compute_again_what_is_gone(tiny, tmp_path):
    """Rewound far, edited, cancelled, saved after it: the same logits as without bound."""
    rng = np.random.default_rng(0)
    options = dict(n_ctx=N_CTX, n_ubatch=64, n_threads=2)
    with Engine(tiny.path, **options) as a, Engine(tiny.path, swa_full=True, **options) as b:
        mine, whole = a.session(), b.session()
        for _ in range(12):
            n_keep = int(rng.integers(0, mine.n_past + 1))
            n_new = int(rng.integers(1, N_CTX - n_keep))
            tokens = rng.integers(0, 60, n_new).tolist()
            for session in (mine, whole):
                session.rewind(n_keep)
            if rng.random() < 0.5:
                mine.save(tmp_path / "s")
                mine = a.session()
                mine.load(tmp_path / "s")
            assert mine.eval(tokens).tobytes() == whole.eval(tokens).tobytes()
            assert mine.tokens == whole.tokens


def test_command_line(tiny, capfdbinary):
    """The text is the same; `info` counts what a context takes."""
    sizes = []
    for n_ctx in (4096, 100_000):
        assert main(["info", str(tiny.path), "--json", "-c", str(n_ctx)]) == 0
        text = capfdbinary.readouterr().out.decode()
        sizes.append(int(text.split('"kv_bytes": ')[1].split(",")[0]))
    model = load(tiny)
    assert sizes == [model.kv_bytes(4096, 4096), model.kv_bytes(100_000, 4096)]
    assert sizes[1] < 0.6 * model.kv_bytes(100_000)
    texts = []
    for flags in ([], ["--swa-full"]):
        assert main(["generate", "-m", str(tiny.path), "-p", "a b", "-n", "8", "--temp", "0", "-c", "900", *flags]) == 0
        texts.append(capfdbinary.readouterr().out)
    assert texts[0] == texts[1]
