"""Reads importance matrices: how large the activations are that each weight column is multiplied with."""

import struct
from pathlib import Path

import numpy as np

from moeengine.errors import GGUFError
from moeengine.loader.messages import quoted, shown_path
from moeengine.loader.model_file import ModelFile
from moeengine.loader.whole_file import read_file

SUMS, COUNTS = ".in_sum2", ".counts"


def read_imatrix(path):
    """Read an importance matrix in the GGUF form or the older binary one.

    Returns
    -------
    dict of tensor name -> float32 (X, 1, C)   mean square of the input of each column; X = 1 for plain
        matrices. An expert without a single token has zeros.

    Raises
    ------
    GGUFError      the file is neither, is cut off, or contradicts itself
    """
    path = Path(path)
    try:
        data = read_file(path)
    except OSError as error:
        raise GGUFError(f"{shown_path(path)}: cannot be read: {error.strerror}") from error
    return _read_gguf(path) if data[:4] == b"GGUF" else _read_binary(data, path)


def _read_gguf(path):
    means = {}
    with ModelFile.open(path) as model:
        for name in model.tensors:
            if not name.endswith(SUMS):
                continue
            weight = name.removesuffix(SUMS)
            sums = _floats(model, name)
            counts = _floats(model, weight + COUNTS).reshape(-1, 1)
            sums = sums.reshape(-1, sums.shape[-1])
            if len(counts) != len(sums):
                raise GGUFError(
                    f"{shown_path(path)}: tensor {quoted(weight + COUNTS)}: found {len(counts)} counts, "
                    f"expected {len(sums)}, as many as rows of {quoted(name)}"
                )
            means[weight] = _means(sums, counts, path, weight)
    if not means:
        raise GGUFError(f"{shown_path(path)}: found no tensor '*{SUMS}', expected an importance matrix")
    return means


def _floats(model, name):
    info = model.tensor(name)
    if info.qtype.name != "F32":
        raise GGUFError(f"{shown_path(model.path)}: tensor {quoted(name)}: found type {info.qtype.name}, expected F32")
    return model.raw(name).view(np.float32).copy()


def _means(sums, counts, path, weight):
    mean = np.divide(sums, counts, out=np.zeros_like(sums), where=counts > 0)
    if not np.isfinite(mean).all() or (mean < 0).any():
        raise GGUFError(f"{shown_path(path)}: {quoted(weight)}: found a negative or non-finite mean square")
    return mean[:, None].astype(np.float32)


def _read_binary(data, path):
    """i32 count of entries; each: i32 name length, name, i32 calls, i32 values, float32 sums. The rest is ignored."""
    pos, means = 0, {}

    def take(n_bytes, what):
        nonlocal pos
        if n_bytes < 0 or pos + n_bytes > len(data):
            raise GGUFError(
                f"{shown_path(path)}: at byte {pos}: found {len(data) - pos} bytes up to the end of the file, "
                f"expected {n_bytes} for {what}; this is no importance matrix or it is cut off"
            )
        pos += n_bytes
        return data[pos - n_bytes : pos]

    def number(what):
        return struct.unpack("<i", take(4, what))[0]

    for _ in range(number("the number of entries")):
        name = take(number("the length of a name"), "a name").decode("utf-8", "replace")
        calls, n_values = number("the number of calls"), number("the number of values")
        sums = np.frombuffer(take(4 * n_values, f"the values of {quoted(name)}"), "<f4")
        means[name] = _means(sums[None], np.full((1, 1), max(calls, 1)), path, name)
    if not means:
        raise GGUFError(f"{shown_path(path)}: found no entries, expected an importance matrix")
    return means
