"""Every metadata key with every kind of value: the model works, or the error is one of ours."""

import pytest

from moeengine import Engine
from moeengine.cli import main
from moeengine.errors import MoeEngineError
from tests.arch_models import ARCH_MODELS, prompt, write_arch
from tests.arch_parts import BASE
from tests.odd_values import VALUES
from tests.tiny import write_gguf, write_tiny

BESIDE = [  # keys that every architecture may have, though no model here has all of them
    "attention.scale", "expert_group_count", "expert_group_used_count", "expert_weights_norm", "nextn_predict_layers",
    "rope.dimension_sections", "rope.scale_linear", "rope.scaling.attn_factor", "rope.scaling.yarn_attn_factor",
    "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow", "rope.scaling.yarn_ext_factor",
]  # fmt: skip


def test_any_value_of_any_key_works_or_is_refused(tmp_path, capsys):
    path, n_refused = tmp_path / "a.gguf", 0
    for key in write_tiny(path).metadata:
        for name, value in VALUES.items():
            write_tiny(path, metadata={key: value})
            try:
                with Engine(path, n_threads=1) as engine:
                    engine.generate("hi <|im_end|>", max_tokens=2, temperature=0)
            except MoeEngineError as error:
                n_refused += 1
                assert "a.gguf" in str(error) or "prompt" in str(error), (key, name, error)
            except Exception as error:
                pytest.fail(f"{key} = {name}: {error!r}")
            assert main(["info", str(path)]) in (0, 1), (key, name)
            shown = capsys.readouterr()
            assert not any(ord(c) < 32 and c != "\n" for c in shown.out + shown.err), (key, name)
    assert n_refused > 100


def cases():
    """(model, key, name of a value): each key with each value, in the models that have the key in turn."""
    having = {}
    for name, model in ARCH_MODELS.items():
        for key in {**BASE, **model.metadata, **dict.fromkeys(["block_count", *BESIDE])}:
            having.setdefault(key, []).append(name)
    for i, (key, names) in enumerate(having.items()):
        for j, value in enumerate(VALUES):
            yield names[(i + j) % len(names)], key, value


def test_so_for_the_keys_of_every_architecture(tmp_path):
    path, n_refused = tmp_path / "a.gguf", 0
    models = {name: write_arch(path, name) for name in ARCH_MODELS}
    for name, key, value in cases():
        arch, metadata = models[name].arch, dict(models[name].metadata)
        metadata[f"{arch}.{key}"] = VALUES[value]
        write_gguf(path, arch, {k: v for k, v in metadata.items() if v is not None}, models[name].tensors)
        try:
            with Engine(path, n_ctx=64, n_threads=1) as engine:
                engine.logits(prompt(8))
        except MoeEngineError as error:
            n_refused += 1
            assert "a.gguf" in str(error), (name, key, value, error)
        except Exception as error:
            pytest.fail(f"{name}: {key} = {value}: {error!r}")
    assert n_refused > 500
