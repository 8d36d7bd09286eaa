"""Every tensor in other shapes, types and values: the model works, or the error is one of ours; so for the writers."""

import gguf
import numpy as np
import pytest

from moeengine import Engine
from moeengine.cli import main
from moeengine.errors import MoeEngineError
from tests.tiny import write_tiny

Q = gguf.GGMLQuantizationType
BESIDE = {  # what some files have and the tiny ones have not
    "blk.0.ffn_down_exps.scale": np.ones(8), "blk.0.ffn_down_exps.bias": np.zeros((8, 64)), "blk.0.attn_q.scale": np.ones(1),
    "blk.0.exp_probs_b.bias": np.zeros(8), "rope_freqs.weight": np.ones(8),
}  # fmt: skip


def variants(shape):
    """name -> a tensor to stand in place of one of this shape; None: none at all."""
    ones = np.ones(shape, np.float32)
    yield "absent", None
    for qtype, dtype in ((Q.F64, np.float64), (Q.I8, np.int8), (Q.I32, np.int32), (Q.F16, np.float16)):
        yield qtype.name, (ones.astype(dtype), qtype)
    yield "BF16", (gguf.quants.quantize(ones, Q.BF16), Q.BF16)
    if shape[-1] % 32 == 0:
        yield "Q8_0", (gguf.quants.quantize(ones, Q.Q8_0), Q.Q8_0)
    for name, other in (
        ("turned", shape[::-1]), ("flat", (ones.size,)), ("one", (1,)), ("4 axes", (1,) * (4 - len(shape)) + shape),
        ("3 axes", (1,) * (3 - len(shape)) + shape), ("fewer axes", shape[1:] or (1,)), ("more rows", (shape[0] + 1, *shape[1:])),
    ):  # fmt: skip
        yield name, np.ones(other, np.float32)
    for value in (np.nan, np.inf, 3e38):
        yield str(value), np.full(shape, value, np.float32)


@pytest.mark.parametrize("arch, options", [("qwen2moe", {}), ("qwen3moe", {"fused_gate_up": True})], ids=str)
def test_any_tensor_of_any_form_works_or_is_refused(tmp_path, capsys, arch, options):
    path, out, n_refused = tmp_path / "a.gguf", tmp_path / "out.gguf", 0
    tiny = write_tiny(path, arch, n_layer=1, tensors=BESIDE, **options)
    for tensor in tiny.tensors:
        for name, value in variants(tiny.weight(tensor).shape):
            write_tiny(path, arch, n_layer=1, tensors=BESIDE | {tensor: value}, **options)
            try:
                with Engine(path, n_ctx=32, n_threads=1) as engine:
                    engine.complete([1, 2, 3], max_tokens=2, temperature=0)
            except MoeEngineError as error:
                n_refused += 1
                assert "a.gguf" in str(error) or "logits" in str(error), (tensor, name, error)
            except Exception as error:
                pytest.fail(f"{tensor} as {name}: {error!r}")
            commands = [("info", path, "--check")]
            if ("exp" in tensor or "gate_inp" in tensor) and not isinstance(value, tuple):
                commands.append(("retier", path, out, "--tiers", "4=keep,rest=keep", "--force", "-q"))
            for command in commands:
                try:
                    assert main([str(word) for word in command]) in (0, 1)
                except Exception as error:
                    pytest.fail(f"{command[0]} of {tensor} as {name}: {error!r}")
    assert n_refused > 80
