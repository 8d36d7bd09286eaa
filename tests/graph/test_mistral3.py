"""mistral3: the dense models that published files are, and what its keys may say. With experts: test_archs.py."""

import functools

import numpy as np
import pytest

from moeengine.errors import GGUFError
from tests.arch_models import DENSE_MODELS, prompt, weights_crc, write_arch
from tests.graph.test_archs import RECORDS
from tests.graph.test_hybrid import error_of
from tests.graph.test_reference import load, logits
from tests.kernels.isas import on_every_isa
from tests.odd_values import count_refused

NAME = "mistral3-dense"


def test_logits_equal_stock(tmp_path):
    tiny, record = write_arch(tmp_path / "m.gguf", NAME), np.load(RECORDS / f"{NAME}.npz")
    assert weights_crc(tiny) == record["crc"]
    got, want = logits(load(tiny), prompt(), n_ctx=256), record["logits"].astype(np.float64)
    assert error_of(got, want).max() < 1e-6 and (got.argmax(-1) == want.argmax(-1)).all()


def test_same_bytes_however_cut(tmp_path):
    tiny = write_arch(tmp_path / "m.gguf", NAME, quant="Q8_0")
    whole = on_every_isa(lambda: logits(load(tiny), prompt(), n_ubatch=512, n_ctx=256))
    for n_ubatch, n_threads in ((1, 1), (64, 3)):
        assert logits(load(tiny), prompt(), n_ubatch=n_ubatch, n_threads=n_threads, n_ctx=256).tobytes() == whole.tobytes()


def test_queries_grow_after_the_original_context(tmp_path):
    want, none = (logits(load(write_arch(tmp_path / "m.gguf", NAME, metadata=m)), prompt()[:60])
                  for m in ({}, {"attention.temperature_scale": None}))  # fmt: skip
    assert none[:32].tobytes() == want[:32].tobytes() and (error_of(none, want)[33:] > 1e-9).all()


@pytest.mark.parametrize("key, value", [
    ("rope.dimension_count", 32), ("attention.value_length", 32), ("attention.temperature_scale", "x"),
    ("rope.scaling.original_context_length", -1), ("feed_forward_length", None),
])  # fmt: skip
def test_refused(tmp_path, key, value):
    with pytest.raises(GGUFError):
        load(write_arch(tmp_path / "m.gguf", NAME, metadata={key: value}))


def test_any_value_of_any_key_works_or_is_refused(tmp_path):
    keys = DENSE_MODELS[NAME].metadata
    assert count_refused(tmp_path / "a.gguf", functools.partial(write_arch, name=NAME), keys) > 20
