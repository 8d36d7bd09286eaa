"""Architectures against recorded logits of stock llama.cpp, and the same bytes however the work is cut and done."""

from pathlib import Path

import numpy as np
import pytest

from moeengine import Engine, graph
from moeengine.cli import main
from moeengine.errors import ConfigError
from moeengine.graph import available
from moeengine.loader.model_file import ModelFile
from moeengine.loader.model_info import describe
from moeengine.quantize.retier import parse_tiers, retier
from moeengine.supply import available as supplies
from tests.arch_models import ARCH_MODELS, DENSE_MODELS, prompt, weights_crc, write_arch
from tests.arch_parts import QType
from tests.graph.test_reference import load, logits
from tests.hybrid import HYBRID_MODELS
from tests.kernels.isas import on_every_isa
from tests.tiny import DENSE_ARCHS, MOE_ARCHS, write_gguf

RECORDS = Path(__file__).parent / "archs"
STREAM = dict(moe_mode="stream", dense_weights="anon", force_cache=True)
SETTINGS = {
    **{mode: dict(moe_mode=mode) for mode in supplies()},
    "no cache": STREAM | dict(cache_mb=0),
    "a small cache, read ahead": STREAM | dict(cache_mb=0.1, n_ubatch=40, prefetch_layers=2),
    "without a mapping": STREAM | dict(cache_mb=0.2, release_mmap=True),
    "sweep": dict(moe_mode="sweep-prefill", sweep_method="direct", sweep_min_tokens=2),
}


@pytest.fixture(scope="module", params=sorted(ARCH_MODELS))
def name(request):
    return request.param


@pytest.fixture(scope="module")
def tiny(name, tmp_path_factory):
    return write_arch(tmp_path_factory.mktemp("arch") / "m.gguf", name, quant="Q8_0")


@pytest.fixture(scope="module")
def n_ctx(name):
    return ARCH_MODELS[name].n_ctx


@pytest.fixture(scope="module")
def tokens(name):
    return prompt(ARCH_MODELS[name].n_tokens)


@pytest.fixture(scope="module")
def whole(tiny, tokens, n_ctx):
    """Logits of the whole prompt at once."""
    return logits(load(tiny), tokens, n_ubatch=512, n_ctx=n_ctx)


def test_every_architecture_has_a_test():
    recorded = {model.arch for model in (ARCH_MODELS | DENSE_MODELS).values()} | {arch for arch, _ in HYBRID_MODELS.values()}
    assert set(available()) == recorded | set(DENSE_ARCHS) | set(MOE_ARCHS)


def test_logits_equal_stock(tmp_path, name, tokens, n_ctx):
    """Float weights: one activation that rounds differently would be seen in all that follows. What is left is such a
    rounding of a key or value to F16, which few positions suffer, more in more layers."""
    tiny = write_arch(tmp_path / "m.gguf", name, quant="F32")
    record = np.load(RECORDS / f"{name}.npz")
    assert weights_crc(tiny) == record["crc"], "other weights than were recorded; see tools/record_archs.py"
    model = load(tiny)
    got, want = logits(model, tokens, n_ubatch=512, n_ctx=n_ctx), record["logits"].astype(np.float64)
    error = ((got - want) ** 2).mean(-1) / want.var(-1)
    if ARCH_MODELS[name].in_any_order:
        assert np.median(error) < 1e-9 * max(1, len(model.blocks) / 10) and error.max() < 1e-7
    else:  # queries, too, round to F16 otherwise here and there
        assert error.max() < 1e-6
    assert (got.argmax(-1) == want.argmax(-1)).all()


@pytest.mark.parametrize("n_ubatch, n_threads", [(1, 1), (3, 2), (64, 5), (149, 2)])
def test_same_bytes_however_cut(tiny, tokens, n_ctx, whole, n_ubatch, n_threads):
    assert logits(load(tiny), tokens, n_ubatch=n_ubatch, n_threads=n_threads, n_ctx=n_ctx).tobytes() == whole.tobytes()


def test_same_bytes_over_the_borders_of_attention(tiny):
    """Positions 128 (F16 sums) and 512 (segments) and beyond, one by one against all at once."""
    tokens = np.tile(prompt(), 3)[:560]
    at_once = logits(load(tiny), tokens, n_ubatch=1024)
    assert logits(load(tiny), tokens, n_ubatch=1).tobytes() == at_once.tobytes()


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_same_bytes_whatever_brings_the_experts(name, tiny, tokens, n_ctx, whole, settings):
    with Engine(tiny.path, **{"n_ctx": n_ctx, "n_threads": 2} | settings) as engine:
        assert engine.logits(tokens).tobytes() == whole.tobytes()
        session = engine.session(n_ctx=n_ctx)
        session.eval(tokens[:-12])
        rows = [session.eval([token]).copy() for token in tokens[-12:]]
        supply = engine.stats()["supply"]
    assert np.stack(rows).tobytes() == whole[-12:].tobytes()
    if ARCH_MODELS[name].n_expert:
        assert settings["moe_mode"] != "stream" or supply["reader_bytes_read"] > 0
        assert settings.get("sweep_method") != "direct" or supply["prefill"]["bytes_read"] > 0


def test_same_bytes_on_every_instruction_set(tiny, tokens, n_ctx, whole):
    assert on_every_isa(lambda: logits(load(tiny), tokens, n_ubatch=64, n_ctx=n_ctx)).tobytes() == whole.tobytes()


def test_renumbered_experts_compute_the_same(tmp_path, name):
    """Spread over tiers in another order, with what belongs to them; expert groups forbid it."""
    tiny = write_arch(tmp_path / "m.gguf", name, quant="F32")
    model, out, tiers = load(tiny), tmp_path / "tiers.gguf", parse_tiers("3=keep,2=keep,rest=keep")
    wanted = [(block.il, ie) for block in model.moe_blocks for ie in (6, 1, 2, 7)]
    if model.hparams.n_expert_groups > 1 or "experts_per_group" in tiny.hparams or not wanted:
        with pytest.raises(ConfigError, match="groups" if wanted else "no experts"):
            retier(tiny.path, out, tiers, wanted)
        return
    retier(tiny.path, out, tiers, wanted)
    spread = graph.load_model(ModelFile.open(out))
    assert [len(block.tiers) for block in spread.moe_blocks] == [3] * len(model.moe_blocks)
    want, got = (logits(m, prompt()[:20], n_ctx=256) for m in (model, spread))
    assert np.abs(got - want).max() < 1e-3 * np.abs(want).max()  # sums over experts in another order


def test_every_tensor_is_used_or_skipped(tiny):
    """Layers of next-token prediction take no memory and no part; nothing else is left out."""
    model = load(tiny)
    used = {name for name, _ in model.pointers + model.expert_pointers()}
    assert used == {name for name in model.file.tensors if not model.file.is_skipped(name)}
    n_layer, n_nextn = tiny.hparams["block_count"], tiny.hparams.get("nextn_predict_layers", 0)
    skipped = tuple(f"blk.{il}." for il in range(n_layer - n_nextn, n_layer))
    assert used == {name for name in tiny.tensors if not name.startswith(skipped)}
    experts = describe(model.file).experts
    assert (experts.n_layer if experts else 0) == len(model.moe_blocks)
    assert model.file.tensor_bytes == sum(model.file.tensors[name].n_bytes for name in used)


def test_a_session_keeps_to_its_side_of_the_original_context(tmp_path):
    """Keys of a context longer than the original were rotated by other factors."""
    tiny = write_arch(tmp_path / "m.gguf", "phimoe")
    with Engine(tiny.path, n_ctx=300) as engine:
        long, short = engine.session(), engine.session(n_ctx=256)
        long.eval(prompt()[:5])
        short.eval(prompt()[:5])
        assert not np.array_equal(long.eval([7]), short.eval([7]))
        long.save(tmp_path / "long")
        engine.session(n_ctx=257).load(tmp_path / "long")
        with pytest.raises(ConfigError, match="kind of context"):
            short.load(tmp_path / "long")


@pytest.mark.parametrize("name", ["mamba-moe", "../llama", "__init__", "llama.py", "x\x1b[31m"])
def test_an_architecture_there_is_not(tmp_path, capsys, name):
    """One line that names it and all there are. Names from a file are never imported."""
    path = write_gguf(tmp_path / "m.gguf", name, {}, {"token_embd.weight": (np.zeros((4, 4), np.float32), QType.F32)})
    assert main(["generate", "-m", str(path), "-p", "x"]) == 1
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.count("\n") == 1 and shown.err[:-1].isprintable()
    assert repr(name) in shown.err and f"supported: {', '.join(available())}" in shown.err
