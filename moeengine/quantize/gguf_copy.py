"""Writes a GGUF v3 file whose metadata are the bytes of another file's, tensor by tensor.

`gguf.GGUFWriter` turns every value into Python objects and back, which is slow for vocabularies and not exact
for strings that are no UTF-8; here an entry that is not changed is copied as the bytes it is.
"""

import os
import struct
from contextlib import contextmanager

from gguf import GGMLQuantizationType, GGUFValueType

from moeengine.errors import ConfigError, SupplyError
from moeengine.loader.whole_file import whole_file

VERSION = 3
_SIZES = {
    GGUFValueType.UINT8: 1, GGUFValueType.INT8: 1, GGUFValueType.BOOL: 1, GGUFValueType.UINT16: 2,
    GGUFValueType.INT16: 2, GGUFValueType.UINT32: 4, GGUFValueType.INT32: 4, GGUFValueType.FLOAT32: 4,
    GGUFValueType.UINT64: 8, GGUFValueType.INT64: 8, GGUFValueType.FLOAT64: 8,
}  # fmt: skip


def metadata_entries(path, n_bytes):
    """Cut the metadata of a GGUF file into entries.

    Parameters
    ----------
    path : path-like     a file that `open_gguf` has accepted: nothing is checked again
    n_bytes : int        bytes of its header, e.g. `GGUFFile.data_offset`

    Returns
    -------
    dict of str -> bytes   the whole entry: key, type, value; file order
    """
    with open(path, "rb") as file:
        buf = file.read(n_bytes)
    count, pos = struct.unpack_from("<Q", buf, 16)[0], 24
    entries = {}
    for _ in range(count):
        start = pos
        pos = _string_end(buf, pos)
        key = buf[start + 8 : pos].decode("utf-8", "replace")
        vtype = GGUFValueType(struct.unpack_from("<I", buf, pos)[0])
        pos = _value_end(buf, pos + 4, vtype)
        entries[key] = buf[start:pos]
    return entries


def _string_end(buf, pos):
    return pos + 8 + struct.unpack_from("<Q", buf, pos)[0]


def _value_end(buf, pos, vtype):
    if vtype == GGUFValueType.STRING:
        return _string_end(buf, pos)
    if vtype != GGUFValueType.ARRAY:
        return pos + _SIZES[vtype]
    element, count = struct.unpack_from("<IQ", buf, pos)
    pos += 12
    if element != GGUFValueType.STRING:
        return pos + count * _SIZES[GGUFValueType(element)]
    for _ in range(count):
        pos = _string_end(buf, pos)
    return pos


def uint32_entry(key, value):
    """The bytes of one entry that holds a u32."""
    name = key.encode()
    return struct.pack(f"<Q{len(name)}sII", len(name), name, GGUFValueType.UINT32, value)


def header_bytes(entries, tensors, alignment):
    """Lay out a file.

    Parameters
    ----------
    entries : dict of str -> bytes                 as from `metadata_entries`
    tensors : list of (name, qtype, shape, n_bytes)   row-major shapes
    alignment : int                                bytes

    Returns
    -------
    header : bytes     padded to the alignment
    offsets : list of int   bytes from the start of the file, a tensor each
    total_bytes : int  of the whole file
    """
    parts = [b"GGUF", struct.pack("<IQQ", VERSION, len(tensors), len(entries)), *entries.values()]
    relative, place = [], 0
    for name, qtype, shape, n_bytes in tensors:
        raw = name.encode()
        ne = shape[::-1]
        parts.append(struct.pack(f"<Q{len(raw)}sI", len(raw), raw, len(ne)))
        parts.append(struct.pack(f"<{len(ne)}QIQ", *ne, GGMLQuantizationType(qtype), place))
        relative.append(place)
        place += -(-n_bytes // alignment) * alignment
    header = b"".join(parts)
    header += b"\0" * (-len(header) % alignment)
    return header, [len(header) + offset for offset in relative], len(header) + place


@contextmanager
def replacing(path):
    """Write a file that appears under its name only when it is whole.

    Yields a binary file in the same folder. On success it takes the name `path`; on any exception it is
    removed, and what stood at `path` before still stands there.

    Raises
    ------
    ConfigError     the folder does not exist
    SupplyError     the file cannot be written
    """
    folder = os.path.dirname(os.path.realpath(path))
    if not os.path.isdir(folder):
        raise ConfigError(f"{path}: no folder {folder} to write into")
    try:
        with whole_file(path) as file:
            yield file
    except OSError as error:
        if isinstance(error, SupplyError):
            raise
        raise SupplyError(f"{path}: cannot be written: {error.strerror}") from error
