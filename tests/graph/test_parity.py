"""Recorded results of stock llama.cpp, where the fixtures lie beside the repository."""

from pathlib import Path

import numpy as np
import pytest

from moeengine import graph
from moeengine.loader.model_file import ModelFile
from tests.graph.test_reference import logits

FIXTURES = Path(__file__).parents[3] / "shared" / "fixtures"
NAMES = sorted(p.stem for p in FIXTURES.glob("*.npz"))
# Fixtures of which not every position is stock's to the byte: experts are summed in another order, and Q5_0 and the
# gate of a shared expert too. Other models may hide this behind the rounding of activations.
CLOSE = {"olmoe", "qwen2moe"}


@pytest.mark.skipif(not NAMES, reason="no fixtures in ../shared")
@pytest.mark.parametrize("name", NAMES)
def test_logits_equal_stock(name):
    recorded = np.load(FIXTURES / f"{name}.npz")
    want = recorded["logits"]
    model = graph.load_model(ModelFile.open(FIXTURES / f"{name}.gguf"))
    got = logits(model, recorded["tokens"])
    if name in CLOSE:
        error = ((got.astype(np.float64) - want) ** 2).mean(-1) / want.var(-1)
        assert error.max() < 1e-12
        assert (got.argmax(-1) == want.argmax(-1)).all()
    else:
        assert np.array_equal(got, want)
