"""Numbers of a file's metadata that no model can be built with: refused with the key, at load."""

import math

import gguf
import numpy as np
import pytest

from moeengine import Engine
from moeengine.errors import GGUFError, UnsupportedError
from tests.arch_models import write_arch
from tests.arch_parts import D
from tests.odd_values import VALUES
from tests.tiny import write_tiny

YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64}
REFUSED = [
    ("expert_count", 16, "8 experts.*expected 16"),  # B031
    ("expert_count", 4, "8 experts.*expected 4"),
    ("expert_count", 0, "expert_count.*layer 0 has 8"),
    ("expert_count", None, "expert_count.*layer 0 has 8"),
    ("rope.freq_base", 1.0, "freq_base"),
    ("rope.freq_base", VALUES["least"], "freq_base"),  # 0 as a float32
    ("rope.scaling.factor", VALUES["most"], "scaling.factor"),  # its reciprocal is 0
    ("rope.scaling.factor", 1e-40, "scaling.factor"),
    ("rope.scaling.factor", -2.0, "scaling.factor"),
    ("rope.scaling.original_context_length", -5, "original_context_length"),
    ("rope.scaling.yarn_beta_fast", 0.0, "yarn_beta_fast"),
    ("rope.scaling.yarn_beta_slow", -1.0, "yarn_beta_slow"),
    ("rope.scaling.yarn_beta_slow", VALUES["most"], "yarn_beta_slow"),
    ("rope.scaling.attn_factor", 65536.0, "attn_factor.*1000"),  # beyond what F16 holds
    ("attention.scale", 1e9, "attention.scale"),
    ("rope.scaling.yarn_log_multiplier", -20 / math.log(4), "yarn_log_multiplier"),
]


@pytest.mark.parametrize("arch", ["qwen3moe", "llama"])
@pytest.mark.parametrize("key, value, words", REFUSED, ids=lambda v: str(v)[:30])
def test_refused_with_the_key(tmp_path, arch, key, value, words):
    metadata = {f"{arch}.{name}": number for name, number in (YARN | {key: value}).items()}
    path = write_tiny(tmp_path / "m.gguf", arch, n_expert=8, metadata=metadata).path
    with pytest.raises(GGUFError, match=words):
        Engine(path, n_threads=1)


def test_the_table_breaks_one_thing_at_a_time(tmp_path):
    for arch in ("qwen3moe", "llama"):
        metadata = {f"{arch}.{name}": value for name, value in YARN.items()}
        Engine(write_tiny(tmp_path / "m.gguf", arch, n_expert=8, metadata=metadata).path, n_threads=1).close()


@pytest.mark.parametrize("name, key, value, words", [
    ("glm4moe-large", "rope.dimension_sections", [4, 6], "expected 3 or 4 counts"),
    ("glm4moe-large", "rope.dimension_sections", [4, 6, -6, 0], "expected 3 or 4 counts"),
    ("glm4moe", "leading_dense_block_count", 0, "blk.0.ffn_gate_inp.weight: missing"),
    ("dots1", "expert_gating_func", 9, "9 is not supported.*softmax.*sigmoid"),
    ("minimax-m2", "expert_gating_func", None, "expert_gating_func: not found"),
    ("bailingmoe2", "expert_group_count", 5, "expert_group_count.*16 experts in 5 groups"),
    ("bailingmoe2", "expert_group_used_count", 0, "expert_group_used_count.*0 groups used"),
    ("bailingmoe2", "expert_used_count", 9, "expert_used_count.*9 experts used: 2 groups of 4"),
    ("bailingmoe2", "attention.head_count_kv", 3, "attention.head_count_kv.*found the int 3.*a divisor of .*head_count = 2"),
    ("deepseek2", "attention.key_length_mla", 1, "key_length_mla.*found the int 1.*3 or more"),
    ("granitemoe", "logit_scale", None, "logit_scale.*not found"),
    ("granitemoe", "logit_scale", 0.0, "logit_scale"),
    ("phimoe", "rope.scaling.original_context_length", (2**64 - 1, gguf.GGUFValueType.UINT64), "original_context_length"),
    ("gemma4", "rope.dimension_count_swa", 1, "rope.dimension_count_swa: found 1, expected an even number"),
    ("gemma4", "rope.dimension_count_swa", None, "rope.dimension_count_swa: found 64, expected at most 32"),
    ("deepseek", "rope.scale_linear", -2.0, "rope.scale_linear: found -2"),
    ("phimoe", "rope.scaling.type", "su", "'su' is not supported.*longrope"),
])  # fmt: skip
def test_keys_of_single_architectures(tmp_path, name, key, value, words):
    path = write_arch(tmp_path / "m.gguf", name, metadata={key: value}).path
    with pytest.raises((GGUFError, UnsupportedError), match=words):
        Engine(path, n_threads=1)


@pytest.mark.parametrize("name, metadata", [
    ("gemma4", {"rope.dimension_count_swa": 0}),
    ("step35", {"rope.dimension_count": 0, "rope.dimension_count_swa": D, "nextn_predict_layers": 0}),
])  # fmt: skip
def test_a_layer_that_does_not_rotate_does_not_see_the_order_of_keys(tmp_path, name, metadata):
    """Where layers with a window rotate and others do not, or the other way round. The one layer here does not."""
    path = write_arch(tmp_path / "m.gguf", name, metadata={"block_count": 1} | metadata, tensors={"rope_freqs.weight": None}).path
    with Engine(path, n_ctx=8, n_threads=1) as engine:
        one, other = (engine.logits(tokens)[-1] for tokens in ([1, 2, 3, 4], [3, 1, 2, 4]))
    np.testing.assert_allclose(one, other, atol=1e-3 * one.std())
