"""Weights that are no routed experts: left to the page cache, touched once, or read into memory of our own.

Expert traffic through the page cache evicts weights that every token needs; memory of our own it cannot.
"""

import os
import re

import numpy as np

from moeengine.errors import ConfigError, SupplyError
from moeengine.supply.budget import memory_room
from moeengine.supply.readers import SMALLEST_ALIGNMENT, direct_alignment
from moeengine.supply.slab import Slab

SPARE_BYTES = 32e6  # for everything else while the model loads
EXPERTS = re.compile(r"_exps(_tier\d+)?\.weight$", re.ASCII)


def dense_tensors(model_file):
    """TensorInfo of every tensor in use that is no bank of routed experts, in file order."""
    return [
        info for name, info in model_file.tensors.items() if not EXPERTS.search(name) and not model_file.is_skipped(name)
    ]


def dense_bytes(model_file):
    """Bytes of them."""
    return sum(info.n_bytes for info in dense_tensors(model_file))


def has_room(model_file):
    """Whether they can be read into memory now; see `apply_dense_policy`."""
    return memory_room().n_bytes >= sum(end - begin for begin, end in _spans(model_file)) + SPARE_BYTES


def apply_dense_policy(model_file, policy):
    """Do with the dense weights of an open file what `policy` says, before the model is built on it.

    Raises
    ------
    SupplyError    a tensor cannot be read, or there is no address space
    ConfigError    there is no room for them
    """
    if policy == "warm":
        for info in dense_tensors(model_file):
            model_file.maps[info.shard].advise(info.offset, info.n_bytes, "willneed")
        for info in dense_tensors(model_file):
            int(model_file.raw(info.name).reshape(-1)[::SMALLEST_ALIGNMENT].sum(dtype=np.int64))
    elif policy == "anon":
        _read_into_memory(model_file)


def _read_into_memory(model_file):
    """One slab for all; a tensor with two uses (a tied head) is read once, since it has one name."""
    infos = dense_tensors(model_file)
    flags = [os.O_DIRECT if direct_alignment(m.path) else 0 for m in model_file.maps]
    spans = _spans(model_file)
    if not has_room(model_file):
        room = memory_room()
        raise ConfigError(
            f"dense_weights: anon needs {(dense_bytes(model_file) + SPARE_BYTES) / 1e6:.0f} MB, {SPARE_BYTES / 1e6:.0f} of them "
            f"while the model loads, found room for {room.n_bytes / 1e6:.0f} ({room.why})"
        )
    memory = np.asarray(Slab(sum(end - begin for begin, end in spans)))
    fds = []
    try:
        for mapped, flag in zip(model_file.maps, flags):
            fds.append(os.open(mapped.path, os.O_RDONLY | os.O_CLOEXEC | flag))
        at, moved = 0, {}
        for info, (begin, end) in zip(infos, spans):
            room = memory[at : at + end - begin]
            skip = info.offset - begin
            _read(fds[info.shard], room, begin, skip + info.n_bytes, info, model_file)
            moved[info.name] = room[skip : skip + info.n_bytes]
            at += end - begin
    except OSError as error:
        if isinstance(error, SupplyError):
            raise
        raise SupplyError(f"{error.filename or model_file.path}: {error.strerror}") from None
    finally:
        for fd in fds:
            os.close(fd)
    for array in moved.values():
        array.flags.writeable = False
    model_file.moved = moved


def _spans(model_file):
    """First and last byte (exclusive), aligned, of what is read for each tensor."""
    align = max(SMALLEST_ALIGNMENT, *(direct_alignment(m.path) for m in model_file.maps))
    return [(info.offset // align * align, -(-(info.offset + info.n_bytes) // align) * align) for info in dense_tensors(model_file)]


def _read(fd, room, offset, need, info, model_file):
    done = 0
    while done < need:
        n = os.preadv(fd, [room[done:]], offset + done)
        if n == 0:
            path = model_file.files[info.shard].path
            raise SupplyError(f"{path}: tensor {info.name}: the file ends inside it; was it changed?")
        done += n
