"""Where a tensor lies in its file, and the checks that a tensor directory has to pass.

Sizes of quant types come from the gguf package. The kernels can multiply with some of the types that may
stand in a file: a tensor of another type is recorded, and refused when it is used as a weight.
"""

import itertools
import math
from dataclasses import dataclass

import gguf

from moeengine.errors import GGUFError, UnsupportedError
from moeengine.kernels.table import quant_types
from moeengine.loader.messages import at_tensor, plural, quoted, shown_path

QType = gguf.GGMLQuantizationType

# What the kernels can multiply with, as far as the installed gguf package knows it.
WEIGHT_TYPES = tuple(QType[name] for name in quant_types() if name in QType.__members__)


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of a model.

    Attributes
    ----------
    shape : row-major, last axis contiguous (GGUF's ne reversed): (X, R, C) for expert banks
    offset : bytes from the start of its file
    shard : index of its file in the model
    """

    name: str
    qtype: gguf.GGMLQuantizationType
    shape: tuple[int, ...]
    offset: int
    n_bytes: int
    shard: int = 0

    @property
    def row_bytes(self):
        """Bytes of one row (the last axis)."""
        block, block_bytes = gguf.GGML_QUANT_SIZES[self.qtype]
        return self.shape[-1] // block * block_bytes


def supported_types():
    """Names and ids of the weight types, for messages."""
    return ", ".join(f"{t.name} ({t.value})" for t in WEIGHT_TYPES)


def qtype_of(type_id, name, path):
    """The quant type with this id, or UnsupportedError naming tensor, id and the supported types."""
    try:
        qtype = QType(type_id)
        gguf.GGML_QUANT_SIZES[qtype]
    except (ValueError, KeyError):
        raise UnsupportedError(
            f"{at_tensor(path, name)}: found quant type {type_id}, which is not known here; "
            f"expected one of {supported_types()}; the file may need a newer version of moeengine"
        ) from None
    return qtype


def require_weight_type(info, path):
    """Raise UnsupportedError unless the kernels can multiply with a tensor of this type."""
    if info.qtype not in WEIGHT_TYPES:
        raise UnsupportedError(
            f"{at_tensor(path, info.name)}: found type {info.qtype.name} ({info.qtype.value}) "
            f"for a weight, expected one of {supported_types()}"
        )


def tensor_bytes(qtype, shape, name, path):
    """Size of a tensor in bytes.

    Raises
    ------
    GGUFError   the row length is no multiple of the type's block
    """
    block, block_bytes = gguf.GGML_QUANT_SIZES[qtype]
    if shape[-1] % block:
        raise GGUFError(
            f"{at_tensor(path, name)}: found rows of {shape[-1]} elements, "
            f"expected a multiple of {block}, the block of {qtype.name}"
        )
    return math.prod(shape) // block * block_bytes


def check_layout(infos, *, path, data_offset, alignment, file_size):
    """Check that every tensor is aligned, lies inside the file and shares no byte with another.

    Raises
    ------
    GGUFError   names the tensor, its byte range and the limit it breaks
    """
    for info in infos:
        if (info.offset - data_offset) % alignment:
            raise GGUFError(
                f"{at_tensor(path, info.name)}: found offset {info.offset - data_offset}, "
                f"expected a multiple of {alignment}"
            )
        if info.offset + info.n_bytes > file_size:
            raise GGUFError(
                f"{at_tensor(path, info.name)}: found bytes {info.offset} to "
                f"{info.offset + info.n_bytes}, expected them inside the file of "
                f"{plural(file_size, 'byte')}; the file is cut off or damaged"
            )
    in_order = sorted(infos, key=lambda info: info.offset)
    for info, following in itertools.pairwise(in_order):
        room = following.offset - info.offset
        if room < info.n_bytes:
            raise GGUFError(
                f"{shown_path(path)}: tensors {quoted(info.name)} and {quoted(following.name)} "
                f"overlap: found the second at byte {following.offset}, expected it at byte "
                f"{info.offset + info.n_bytes} or later{_other_type_hint(info, room, alignment)}"
            )
        if room > _padded(info.n_bytes, alignment) and (
            hint := _other_type_hint(info, room, alignment)
        ):
            raise GGUFError(
                f"{at_tensor(path, info.name)}: found {room} bytes up to the next tensor, "
                f"expected {info.n_bytes} for type {info.qtype.name} ({info.qtype.value}){hint}"
            )


def _other_type_hint(info, room, alignment):
    """A remark when the room that a quantized tensor has is exactly right for another quantized type.

    Some programs number newer types differently, and such a file would otherwise load as noise.
    """
    if gguf.GGML_QUANT_SIZES[info.qtype][0] == 1:
        return ""
    for qtype, (block, block_bytes) in gguf.GGML_QUANT_SIZES.items():
        if qtype != info.qtype and block > 1 and info.shape[-1] % block == 0:
            if _padded(math.prod(info.shape) // block * block_bytes, alignment) == room:
                return (
                    f"; {room} bytes would fit {qtype.name} ({qtype.value}): "
                    "the file may number its quant types differently"
                )
    return ""


def _padded(n, alignment):
    return -(-n // alignment) * alignment
