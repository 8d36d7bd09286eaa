"""Every metadata key with every kind of value: the model works, or the error is one of ours."""

import math

import gguf
import pytest

from moeengine import Engine
from moeengine.cli import main
from moeengine.errors import MoeEngineError
from tests.tiny import write_tiny

T = gguf.GGUFValueType
VALUES = {
    "absent": None, "zero": 0, "odd": 7, "2^20": 2**20, "2^64-1": (2**64 - 1, T.UINT64), "negative": -1,
    "inf": math.inf, "nan": math.nan, "bool": True, "text": "x\x00\x1b", "large array": [2**30, 2**30],
    "infinities": [math.inf, math.nan], "texts": ["a", "b"],
}  # fmt: skip


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
