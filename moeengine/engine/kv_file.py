"""A timeline in a file: tokens of a Session, its KV cache and, where the model has one, its recurrent state.

offset  bytes  field
     0      8  magic "MOEKV001"
     8      4  n, little-endian
    12      n  JSON: model (fingerprint), n_tokens, n_kv, crc32 of what follows
  12+n         tokens: n_tokens int32; what the context keeps: n_kv uint16 in its own order (Context.kv_state)
"""

import hashlib
import json
import zlib
from dataclasses import dataclass

import numpy as np

from moeengine.errors import ConfigError
from moeengine.graph.rope import original_context
from moeengine.loader.whole_file import read_file, whole_file

MAGIC = b"MOEKV001"
MAX_HEADER_BYTES = 1 << 24


@dataclass(frozen=True)
class SavedTimeline:
    """tokens : list of int; kv : uint16 (n_kv,) as the context gave them."""

    tokens: list
    kv: np.ndarray


def fingerprint(model_file, n_ctx):
    """Hex digest that two model files and contexts share only if they compute the same, as far as the files' headers tell.

    The architecture's own keys (rope, norms, scales, ...), and of every tensor name, type, shape and first bytes.
    """
    arch = model_file.architecture
    digest = hashlib.sha256(arch.encode())
    for key, value in sorted(model_file.metadata.items()):
        if key.startswith(f"{arch}."):
            digest.update(f"{key} {value if np.isscalar(value) else list(value)}\n".encode())
    for name, info in sorted(model_file.tensors.items()):
        digest.update(f"{name} {int(info.qtype)} {info.shape} {info.n_bytes}\n".encode())
        digest.update(model_file.head(name, 64))
    if "rope_factors_long.weight" in model_file.tensors:  # keys are rotated by the length of the context
        digest.update(str(n_ctx > original_context(model_file)).encode())
    return digest.hexdigest()


def save(path, model_file, tokens, context):
    """Write the file whole or not at all. OSError: see `whole_file`."""
    ids = np.asarray(tokens, "<i4")
    kv = np.ascontiguousarray(context.kv_state(len(tokens)), "<u2")
    header = json.dumps(
        {
            "model": fingerprint(model_file, context.n_ctx),
            "n_tokens": len(tokens),
            "n_kv": kv.size,
            "crc32": zlib.crc32(kv.data, zlib.crc32(ids.data)),
        }
    ).encode()
    with whole_file(path) as file:
        for data in (MAGIC, len(header).to_bytes(4, "little"), header, ids.data, kv.data):
            file.write(data)


def load(path, model_file, n_vocab, n_ctx):
    """SavedTimeline of a file. ConfigError: not such a file, damaged, or of another model."""
    data = memoryview(read_file(path))

    def refuse(found, expected):
        raise ConfigError(f"{path}: found {found}, expected {expected}")

    if bytes(data[:8]) != MAGIC:
        refuse(f"{bytes(data[:8])!r} at its start", f"{MAGIC!r}, a saved session")
    n_header = int.from_bytes(data[8:12], "little")
    if n_header > min(MAX_HEADER_BYTES, len(data) - 12):
        refuse(f"a header of {n_header} bytes", f"at most {max(len(data) - 12, 0)}")
    body = data[12 + n_header :]
    try:
        header = json.loads(bytes(data[12 : 12 + n_header]))
        model, crc = header["model"], header["crc32"]
        n_tokens, n_kv = header["n_tokens"], header["n_kv"]
        if not isinstance(model, str) or not all(type(n) is int and n >= 0 for n in (n_tokens, n_kv)):
            raise TypeError
    except (ValueError, KeyError, TypeError, RecursionError):
        refuse("a damaged header", "JSON with model, n_tokens, n_kv and crc32")
    if 4 * n_tokens + 2 * n_kv != len(body):
        refuse(f"{len(body)} bytes after the header", f"{4 * n_tokens + 2 * n_kv}")
    if zlib.crc32(body) != crc:
        refuse("a checksum that does not match", "the bytes that were saved")
    own = fingerprint(model_file, n_ctx)
    if model != own:
        refuse(f"the session of another model or kind of context ({model[:12]})", own[:12])
    tokens = np.frombuffer(body, "<i4", n_tokens).tolist()
    if tokens and not 0 <= min(tokens) <= max(tokens) < n_vocab:
        refuse("token ids outside the vocabulary", f"0 to {n_vocab - 1}")
    return SavedTimeline(tokens, np.frombuffer(body, "<u2", n_kv, 4 * n_tokens))
