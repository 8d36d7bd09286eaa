"""One GGUF file (v2, v3, little-endian): one pass over the header, in which everything is checked.

The gguf package supplies constants, types and sizes; its reader makes several NumPy objects for every
string, which takes seconds for a large vocabulary, so the scan is done here.
Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import os
import struct
from pathlib import Path

import gguf

from moeengine.errors import GGUFError
from moeengine.loader.header_reader import HeaderReader
from moeengine.loader.messages import plural, quoted, shown_path
from moeengine.loader.metadata import StringArray, TypedMetadata
from moeengine.loader.open_file import absolute, open_regular
from moeengine.loader.tensor_info import TensorInfo, check_layout, qtype_of, tensor_bytes

MAGIC = b"GGUF"
VERSIONS = (2, 3)
ALIGNMENT_KEY = gguf.Keys.General.ALIGNMENT
DEFAULT_ALIGNMENT = gguf.GGUF_DEFAULT_ALIGNMENT
MAX_ALIGNMENT = 1 << 20
MAX_DIMS = 4
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 18
MAX_KEY_BYTES = (1 << 16) - 1  # by the format's own rule
MAX_TENSOR_NAME_BYTES = 255
MIN_KEY_ENTRY_BYTES = 8 + 1 + 4 + 1  # length, name, type, smallest value
MIN_TENSOR_ENTRY_BYTES = 8 + 1 + 4 + 8 + 4 + 8  # length, name, n_dims, one dim, type, offset

VType = gguf.GGUFValueType
_SCALARS = {
    VType.UINT8: struct.Struct("<B"), VType.INT8: struct.Struct("<b"), VType.UINT16: struct.Struct("<H"),
    VType.INT16: struct.Struct("<h"), VType.UINT32: struct.Struct("<I"), VType.INT32: struct.Struct("<i"),
    VType.FLOAT32: struct.Struct("<f"), VType.BOOL: struct.Struct("<?"), VType.UINT64: struct.Struct("<Q"),
    VType.INT64: struct.Struct("<q"), VType.FLOAT64: struct.Struct("<d"),
}  # fmt: skip
_ARRAY_DTYPES = {
    VType.UINT8: "u1", VType.INT8: "i1", VType.UINT16: "<u2", VType.INT16: "<i2", VType.UINT32: "<u4",
    VType.INT32: "<i4", VType.FLOAT32: "<f4", VType.BOOL: "u1", VType.UINT64: "<u8", VType.INT64: "<i8",
    VType.FLOAT64: "<f8",
}  # fmt: skip

# The rest of a tensor entry by number of dimensions: ne, type id, offset.
_ENTRIES = {n: struct.Struct(f"<{n}QIQ") for n in range(1, MAX_DIMS + 1)}


class GGUFFile(TypedMetadata):
    """What the header of one file says. Holds no descriptor and no mapping.

    Attributes
    ----------
    path : Path                 absolute, symlinks kept
    version : int               2 or 3
    alignment : int             bytes; power of two
    file_size, data_offset : int  bytes; offset 0 of the tensor data in the file
    metadata : dict             key -> int, float, bool, str, ndarray (n,) read-only, or StringArray
    value_types : dict          key -> GGUFValueType, or (ARRAY, element type)
    tensors : dict              name -> TensorInfo, in file order
    """

    def __init__(self, path, file_size):
        self.path = path
        self.file_size = file_size
        self.version = 0
        self.alignment = DEFAULT_ALIGNMENT
        self.data_offset = 0
        self.metadata = {}
        self.value_types = {}
        self.tensors = {}

    def __repr__(self):
        return (
            f"GGUFFile({str(self.path)!r}, {len(self.metadata)} keys, {len(self.tensors)} tensors)"
        )


def open_gguf(path, *, tensors=True):
    """Scan the header of a GGUF file.

    Parameters
    ----------
    path : str or path-like
    tensors : bool    False stops after the metadata: `tensors` stays empty, `data_offset` 0, and
                      nothing of the data is checked

    Returns
    -------
    GGUFFile; no descriptor stays open

    Raises
    ------
    GGUFError           the file cannot be read or is not a sound GGUF; names the byte offset
    UnsupportedError    a tensor has a quant type that is not known
    """
    path = absolute(path)
    fd, file_size = open_regular(path)
    try:
        return scan_gguf(fd, path, file_size, tensors=tensors)
    finally:
        os.close(fd)


def scan_gguf(fd, path, file_size, *, tensors=True, shard=0):
    """`open_gguf` for a file that is open already; `shard` is noted in every TensorInfo."""
    reader = HeaderReader(fd, Path(path), file_size)
    file = GGUFFile(Path(path), file_size)
    file.version = _read_version(reader)
    n_tensors = _read_count(reader, "tensors", MAX_TENSORS, MIN_TENSOR_ENTRY_BYTES)
    n_keys = _read_count(reader, "metadata keys", MAX_KEYS, MIN_KEY_ENTRY_BYTES)
    for _ in range(n_keys):
        _read_key_value(reader, file)
    file.alignment = _alignment(file)
    if tensors:
        _read_directory(reader, file, n_tensors, shard)
    del reader.buf[reader.pos :]  # string arrays keep the rest alive
    return file


def _read_version(reader):
    if reader.file_size == 0:
        raise GGUFError(f"{shown_path(reader.path)}: found an empty file, expected a GGUF file")
    magic = reader.take(min(4, reader.file_size), "the magic")
    swapped = magic == MAGIC[::-1]
    if magic != MAGIC and not swapped:
        raise reader.error(f"the magic {magic!r}", f"{MAGIC!r}; this is not a GGUF file", at=0)
    version = reader.u32("the version")
    if swapped or version and version & 0xFFFF == 0:
        raise reader.error(
            "a big-endian file", "a little-endian GGUF; convert it with gguf-convert-endian", at=4
        )
    if version == 1:
        raise reader.error(
            "GGUF version 1, which is not supported",
            "version 2 or 3; convert the model again",
            at=4,
        )
    if version not in VERSIONS:
        raise reader.error(f"GGUF version {version}", "version 2 or 3", at=4)
    return version


def _read_count(reader, noun, limit, min_entry_bytes):
    at = reader.pos
    count = reader.u64(f"the number of {noun}")
    possible = (reader.file_size - reader.pos) // min_entry_bytes
    if count > possible:
        raise reader.error(
            f"a count of {count} {noun}",
            f"at most {possible}, as many as the file has room for",
            at=at,
        )
    if count > limit:
        raise reader.error(f"a count of {count} {noun}", f"at most {limit}", at=at)
    return count


def _read_key_value(reader, file):
    at = reader.pos
    key = reader.name("a metadata key", MAX_KEY_BYTES)
    if key in file.metadata:
        raise reader.error(f"key {quoted(key)} a second time", "every key once", at=at)
    what = f"key {quoted(key)}"
    vtype = _value_type(reader, what)
    if vtype == VType.ARRAY:
        element_type = _value_type(reader, f"the elements of {what}")
        if element_type == VType.ARRAY:
            raise reader.error(
                f"an array of arrays in {what}", "an array of numbers, bools or strings"
            )
        file.value_types[key] = (vtype, element_type)
        file.metadata[key] = _read_array(reader, element_type, what)
    else:
        file.value_types[key] = vtype
        file.metadata[key] = _read_scalar(reader, vtype, what)


def _value_type(reader, what):
    at = reader.pos
    type_id = reader.u32(f"the type of {what}")
    try:
        return VType(type_id)
    except ValueError:
        raise reader.error(
            f"value type {type_id} for {what}", f"a type from 0 to {max(VType)}", at=at
        ) from None


def _read_scalar(reader, vtype, what):
    if vtype == VType.STRING:
        return reader.string(what).decode("utf-8", "replace")
    packed = _SCALARS[vtype]
    (value,) = packed.unpack(reader.take(packed.size, what))
    return value


def _read_array(reader, element_type, what):
    count = reader.u64(f"the length of {what}")
    if element_type == VType.STRING:
        return StringArray(reader.buf, reader.string_starts(count, what))
    numbers = reader.numbers(_ARRAY_DTYPES[element_type], count, what)
    if element_type == VType.BOOL:
        numbers = numbers != 0
        numbers.flags.writeable = False
    return numbers


def _alignment(file):
    value = file.metadata.get(ALIGNMENT_KEY, DEFAULT_ALIGNMENT)
    is_int = isinstance(value, int) and not isinstance(value, bool)
    if not is_int or not 1 <= value <= MAX_ALIGNMENT or value & (value - 1):
        file.refuse(ALIGNMENT_KEY, value, f"an integer power of two from 1 to {MAX_ALIGNMENT}")
    return value


def _read_directory(reader, file, n_tensors, shard):
    """Read `n_tensors` tensor entries into `file.tensors` and check them all."""
    rows = {}
    for _ in range(n_tensors):
        at = reader.pos
        name = reader.name("a tensor name", MAX_TENSOR_NAME_BYTES)
        if name in rows:
            raise reader.error(f"tensor {quoted(name)} a second time", "every tensor once", at=at)
        rows[name] = _read_entry(reader, name)
    file.data_offset = -(-reader.pos // file.alignment) * file.alignment
    for name, (type_id, shape, offset) in rows.items():
        qtype = qtype_of(type_id, name, file.path)
        n_bytes = tensor_bytes(qtype, shape, name, file.path)
        file.tensors[name] = TensorInfo(
            name, qtype, shape, file.data_offset + offset, n_bytes, shard
        )
    check_layout(
        file.tensors.values(), path=file.path, data_offset=file.data_offset, alignment=file.alignment,
        file_size=file.file_size,
    )  # fmt: skip


def _read_entry(reader, name):
    """(type id, row-major shape, offset from the start of the tensor data) of one tensor."""
    at = reader.pos
    what = f"tensor {quoted(name)}"
    n_dims = reader.u32(what)
    if not 1 <= n_dims <= MAX_DIMS:
        raise reader.error(f"{plural(n_dims, 'dimension')} in {what}", f"1 to {MAX_DIMS}", at=at)
    packed = _ENTRIES[n_dims]
    *ne, type_id, offset = packed.unpack(reader.take(packed.size, what))
    if 0 in ne:
        raise reader.error(f"shape {tuple(ne[::-1])} of {what}", "no dimension of size 0", at=at)
    return type_id, tuple(ne[::-1]), offset
