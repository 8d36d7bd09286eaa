"""Spells out a GGUF file field by field, so that a test can put a wrong value in any of them."""

import struct

import gguf

T = gguf.GGUFValueType
F32 = int(gguf.GGMLQuantizationType.F32)


def text(s):
    raw = s if isinstance(s, bytes) else s.encode()
    return struct.pack("<Q", len(raw)) + raw


def key_value(key, vtype, payload):
    """One metadata entry; `payload` is the packed value."""
    return text(key) + struct.pack("<I", vtype) + payload


def u32(key, value):
    return key_value(key, T.UINT32, struct.pack("<I", value))


def string(key, value):
    return key_value(key, T.STRING, text(value))


def array(key, element_type, count, payload):
    return key_value(key, T.ARRAY, struct.pack("<IQ", element_type, count) + payload)


def tensor(name, ne, offset, type_id=F32, n_dims=None):
    """One directory entry; `ne` is GGUF's order, fastest axis first."""
    dims = struct.pack(f"<{len(ne)}Q", *ne)
    return (
        text(name)
        + struct.pack("<I", len(ne) if n_dims is None else n_dims)
        + dims
        + struct.pack("<IQ", type_id, offset)
    )


def build(
    keys=(),
    tensors=(),
    data=b"",
    *,
    magic=b"GGUF",
    version=3,
    n_tensors=None,
    n_keys=None,
    alignment=32,
    cut=None,
):
    """The bytes of a file. Counts follow the lists unless given; `data` starts at the next multiple of `alignment`."""
    head = magic + struct.pack(
        "<IQQ",
        version,
        len(tensors) if n_tensors is None else n_tensors,
        len(keys) if n_keys is None else n_keys,
    )
    head += b"".join(keys) + b"".join(tensors)
    if tensors:
        head += bytes(-len(head) % alignment)
    return (head + data)[:cut]
