"""Values that a metadata key or a tensor may have in a bad file, and how a model takes them."""

import contextlib
import math

import gguf
import numpy as np
import pytest

from moeengine import Engine
from moeengine.errors import MoeEngineError

T = gguf.GGUFValueType
VALUES = {
    "absent": None, "zero": 0, "odd": 7, "2^20": 2**20, "2^64-1": (2**64 - 1, T.UINT64), "negative": -1,
    "inf": math.inf, "nan": math.nan, "bool": True, "text": "x\x00\x1b", "large array": [2**30, 2**30],
    "infinities": [math.inf, math.nan], "texts": ["a", "b"], "most": (1.7e308, T.FLOAT64), "least": (5e-324, T.FLOAT64),
}  # fmt: skip


def count_refused(path, write, keys, *, also=()):
    """How many of VALUES the model refuses for `keys`; with the others it computes two tokens.

    write : function (path, metadata)     writes the model with these keys
    also : errors that need not name the file, as every other must
    """
    n = 0
    for key in keys:
        for name, value in VALUES.items():
            write(path, metadata={key: value})
            try:
                with Engine(path, n_ctx=64, n_threads=1) as engine:
                    engine.complete([1, 2], max_tokens=2, temperature=0)
            except MoeEngineError as error:
                n += 1
                assert path.name in str(error) or isinstance(error, also), (key, name, error)
            except Exception as error:
                pytest.fail(f"{key} = {name}: {error!r}")
    return n


def compute_not_finite(path, write, tiny, names, tokens=(1, 2, 3), *, n_ctx=None):
    """Logits of tokens by models of which one tensor is nothing but NaN, an infinity or near it; errors are of ours.

    write : function (path, tensors)     writes the model with these tensors
    tiny : Tiny                          the model as it is, which has the tensors `names`
    """
    for name in names:
        array, qtype = tiny.tensors[name]
        for value in (np.nan, np.inf, -np.inf, 3e38):
            write(path, tensors={name: (np.full_like(array, value), qtype)})
            with Engine(path, n_threads=2, n_ctx=n_ctx) as engine, contextlib.suppress(MoeEngineError):
                engine.logits(tokens)
