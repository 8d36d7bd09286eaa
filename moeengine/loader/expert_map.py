"""The binary table of expert ranges: made from a model's banks, written, read back and held against them.

Layout, little-endian: magic (8 bytes); u64 size, device, inode and modification time in ns of the model file;
u32 layers; a layer: u32 experts (0: it has none); an expert: u64 offset and u64 length of gate, up, down,
the first 0 and 0 where it has no gate.
"""

import os
import struct
from dataclasses import dataclass

import numpy as np

from moeengine.errors import ConfigError
from moeengine.loader.banks import all_banks
from moeengine.loader.messages import plural, shown_path
from moeengine.loader.whole_file import whole_file

MAGIC = b"WEEPF001"
MAX_BYTES = 1 << 30  # of a map; far above the largest model
_HEAD = struct.Struct("<8s4QI")
_COUNT = struct.Struct("<I")
_EXPERT_BYTES = 3 * 2 * 8
_IDENTITY = ("size", "device", "inode", "modification time")
_PARTS = ("gate", "up", "down")


@dataclass(frozen=True)
class ExpertMap:
    """Which bytes of a file are which expert.

    identity : tuple of int               size, device, inode, modification time in ns of the model file
    layers : list of uint64 (X, 3, 2)     offset and length of gate, up and down of every expert; X may be 0
    """

    identity: tuple
    layers: list


def map_of(model_file):
    """The ExpertMap of an open model of one file.

    Raises
    ------
    ConfigError    it is a set of several files, or has no experts
    GGUFError      its banks are not sound
    """
    if len(model_file.maps) > 1:
        raise ConfigError(
            f"expert map: found a set of {len(model_file.maps)} files at {shown_path(model_file.path)}, "
            "expected one file"
        )
    arch = model_file.architecture
    n_layer = model_file.get_int(f"{arch}.block_count", lo=0, hi=1 << 16)
    n_embd = model_file.get_int(f"{arch}.embedding_length", lo=1)
    layers = [
        np.array([[s[1:] for s in banks.slices(ie)] for ie in range(banks.n_expert)], np.uint64)
        if banks
        else np.zeros((0, 3, 2), np.uint64)
        for banks in all_banks(model_file, n_layer, n_embd=n_embd)
    ]
    if not any(len(layer) for layer in layers):
        raise ConfigError(f"expert map: {shown_path(model_file.path)}: found no experts, expected some")
    status = os.fstat(model_file.maps[0].fd)
    return ExpertMap((status.st_size, status.st_dev, status.st_ino, status.st_mtime_ns), layers)


def to_bytes(expert_map):
    """The map as it lies in its file: bytes."""
    parts = [_HEAD.pack(MAGIC, *expert_map.identity, len(expert_map.layers))]
    for layer in expert_map.layers:
        parts += [_COUNT.pack(len(layer)), layer.astype("<u8").tobytes()]
    return b"".join(parts)


def write_map(path, expert_map):
    """Write the file whole or not at all. OSError: see `whole_file`."""
    with whole_file(path) as file:
        file.write(to_bytes(expert_map))


def from_bytes(data, path):
    """Parse a map; only its own soundness is checked.

    Raises
    ------
    ConfigError    what is wrong and at which byte
    """

    def refuse(at, found, expected):
        raise ConfigError(f"expert map {shown_path(path)}: at byte {at}: found {found}, expected {expected}")

    if len(data) < _HEAD.size:
        refuse(0, plural(len(data), "byte"), f"at least {_HEAD.size}")
    magic, *identity, n_layers = _HEAD.unpack_from(data)
    if magic != MAGIC:
        refuse(0, repr(bytes(magic)), repr(MAGIC))
    size, at, layers = identity[0], _HEAD.size, []
    if n_layers > (len(data) - at) // _COUNT.size:
        refuse(at - 4, plural(n_layers, "layer"), f"no more than {len(data)} bytes can hold")
    for il in range(n_layers):
        if len(data) - at < _COUNT.size:
            refuse(at, f"{plural(len(data) - at, 'byte')} for layer {il}", "its count of experts (truncated)")
        (n_expert,) = _COUNT.unpack_from(data, at)
        at += _COUNT.size
        if n_expert > (len(data) - at) // _EXPERT_BYTES:
            refuse(at - 4, f"{plural(n_expert, 'expert')} in layer {il}", f"as many as {len(data) - at} bytes hold (truncated)")
        layer = np.frombuffer(data, "<u8", 6 * n_expert, at).reshape(n_expert, 3, 2)
        offset, length = layer[:, :, 0], layer[:, :, 1]
        bad = np.argwhere((length > size) | (offset > size - np.minimum(length, np.uint64(size))))
        if len(bad):
            ie, part = bad[0]
            refuse(
                at + int(ie) * _EXPERT_BYTES + int(part) * 16,
                f"{layer[ie, part, 1]} bytes at {layer[ie, part, 0]} for layer {il}, expert {ie}, {_PARTS[part]}",
                f"a range inside the {size} bytes of the model file",
            )
        layers.append(layer)
        at += n_expert * _EXPERT_BYTES
    if at != len(data):
        refuse(at, plural(len(data) - at, "trailing byte"), "the end of the map")
    return ExpertMap(tuple(identity), layers)


def read_map(path):
    """The ExpertMap of a file, not yet held against a model. ConfigError: it cannot be read, or is none."""
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise ConfigError(f"expert map {shown_path(path)}: {getattr(error, 'strerror', None) or error}") from None
    if len(data) > MAX_BYTES:
        raise ConfigError(f"expert map {shown_path(path)}: found more than {MAX_BYTES} bytes, expected at most that")
    return from_bytes(data, path)


def check_map(path, model_file):
    """Read a map and hold it against the open model: of this very file, unchanged, and the same ranges.

    Returns
    -------
    ExpertMap

    Raises
    ------
    ConfigError    the first thing that differs
    """
    found, expected = read_map(path), map_of(model_file)
    where = f"expert map {shown_path(path)}"
    for name, ours, theirs in zip(_IDENTITY, found.identity, expected.identity):
        if ours != theirs:
            raise ConfigError(
                f"{where}: found {name} {ours}, expected {theirs}, that of {shown_path(model_file.path)}; "
                "make the map anew"
            )
    if len(found.layers) != len(expected.layers):
        raise ConfigError(f"{where}: found {plural(len(found.layers), 'layer')}, expected {len(expected.layers)}")
    for il, (ours, theirs) in enumerate(zip(found.layers, expected.layers)):
        if len(ours) != len(theirs):
            raise ConfigError(f"{where}: found {plural(len(ours), 'expert')} in layer {il}, expected {len(theirs)}")
        different = np.argwhere((ours != theirs).any(axis=2))
        if len(different):
            ie, part = different[0]
            raise ConfigError(
                f"{where}: found {ours[ie, part, 1]} bytes at {ours[ie, part, 0]} for layer {il}, expert {ie}, "
                f"{_PARTS[part]}, expected {theirs[ie, part, 1]} at {theirs[ie, part, 0]}"
            )
    return found
