"""Experts spread over banks of different quant types."""

import numpy as np
import pytest

from moeengine.errors import GGUFError
from tests.graph.test_reference import TOKENS, load, logits, relative_error
from tests.reference import reference_of
from tests.tiny import write_tiny


def split(tiny, path, counts):
    """The same weights with each layer's experts in tiers of `counts`; tier 0 first."""
    tensors = {}
    for name, (array, qtype) in tiny.tensors.items():
        if "_exps." not in name:
            continue
        tensors[name] = None
        first = 0
        for tier, n in enumerate(counts):
            stem = name.replace("_exps.", f"_exps_tier{tier}." if tier else "_exps.")
            tensors[stem] = (np.ascontiguousarray(array[first : first + n]), qtype)
            first += n
    return write_tiny(path, tiny.arch, n_expert=8, n_expert_used=3, quant="Q8_0", tensors=tensors)


@pytest.mark.parametrize("counts", [(5, 3), (1, 6, 1), (2, 2, 2, 2)])
@pytest.mark.parametrize("arch", ["qwen3moe", "qwen2moe", "olmoe", "llama", "gpt-oss"])
def test_splitting_one_type_changes_no_byte(tmp_path, arch, counts):
    whole = write_tiny(tmp_path / "w.gguf", arch, n_expert=8, n_expert_used=3, quant="Q8_0")
    parts = split(whole, tmp_path / "p.gguf", counts)
    assert logits(load(parts), TOKENS).tobytes() == logits(load(whole), TOKENS).tobytes()


@pytest.mark.parametrize("types", [
    [(3, "Q4_K"), (5, "Q2_K")],
    [(2, "Q8_0"), (2, "IQ2_XXS"), (2, "Q4_K"), (2, "Q6_K")],
    [(4, "F32"), (4, "Q8_0")],
])
def test_tiers_of_different_types_equal_the_reference(tmp_path, types):
    tiny = write_tiny(tmp_path / "m.gguf", "qwen3moe", quant="Q8_0", tiers=types, n_expert_used=3)
    got = logits(load(tiny), TOKENS)
    assert relative_error(got, reference_of(tiny)(TOKENS)) < 0.1
    assert logits(load(tiny), TOKENS, n_ubatch=1).tobytes() == got.tobytes()


def test_wide_experts_whatever_the_units_of_work(tmp_path):
    """One row is computed in units of up to 1,024 rows of weights, many rows in units of 64: the same bytes."""
    tiny = write_tiny(tmp_path / "m.gguf", "qwen3moe", quant="Q4_K", n_embd=256, n_ff_exp=2304, n_expert=4, n_expert_used=2, n_layer=1)
    expected = logits(load(tiny), TOKENS).tobytes()
    for n_threads in (1, 2, 3):
        assert logits(load(tiny), TOKENS, n_ubatch=1, n_threads=n_threads).tobytes() == expected


def test_down_wider_than_the_hidden_rows(tmp_path):
    """192 hidden values do not fill a block of 256: `down` is wider, the rest of the activation is zero."""
    made = write_tiny(tmp_path / "a.gguf", "qwen3moe", quant="F32", n_embd=256, n_ff_exp=192, n_expert=4)
    rng = np.random.default_rng(0)
    tensors = {}
    for il in range(2):
        down = made.weight(f"blk.{il}.ffn_down_exps.weight")
        wide = np.concatenate([down, rng.standard_normal((4, 256, 64)).astype(np.float32)], axis=2)
        tensors[f"blk.{il}.ffn_down_exps.weight"] = wide
    padded = write_tiny(tmp_path / "b.gguf", "qwen3moe", quant="F32", n_embd=256, n_ff_exp=192, n_expert=4, tensors=tensors)
    assert relative_error(logits(load(padded), TOKENS), logits(load(made), TOKENS)) < 1e-5


def test_banks_that_do_not_add_up(tmp_path):
    tiny = write_tiny(tmp_path / "m.gguf", "qwen3moe", tiers=[(4, "Q8_0"), (4, "Q8_0")])
    for name in ("blk.0.ffn_up_exps_tier1.weight", "blk.1.ffn_down_exps.weight"):
        bad = write_tiny(tmp_path / "b.gguf", "qwen3moe", tiers=[(4, "Q8_0"), (4, "Q8_0")], tensors={name: None})
        with pytest.raises(GGUFError):
            load(bad)
    assert tiny.path.exists()
