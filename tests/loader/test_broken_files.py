"""The table of broken files. Each is refused at open with one typed error that says where and what."""

import os
import stat
import struct
import time

import gguf
import numpy as np
import pytest

from moeengine.errors import GGUFError, MoeEngineError, UnsupportedError
from moeengine.loader.gguf_file import open_gguf
from moeengine.loader.model_file import ModelFile
from tests.loader import raw_gguf as raw
from tests.loader.conditions import without_sanitizer
from tests.tiny import write_gguf, write_tiny

T = gguf.GGUFValueType
Q = gguf.GGMLQuantizationType
HUGE = 2**63


def one_tensor(ne=(8,), offset=0, type_id=raw.F32, data=256, **kw):
    return raw.build(
        [],
        [raw.tensor("bad.weight", ne, offset, type_id, kw.pop("n_dims", None))],
        bytes(data),
        **kw,
    )


def alignment(vtype, payload):
    return raw.build(
        [raw.key_value("general.alignment", vtype, payload)],
        [raw.tensor("t", [8], 0)],
        bytes(1 << 12),
    )


def two_tensors(second_offset):
    return raw.build(
        [], [raw.tensor("one", [16], 0), raw.tensor("two", [16], second_offset)], bytes(4096)
    )


GOOD = raw.build([raw.u32("k", 1)], [raw.tensor("t", [8], 0)], bytes(32))

# name: (bytes, words that the message must hold)
BROKEN = {
    "empty": (b"", ["empty"]),
    "one byte": (b"G", ["not a GGUF"]),
    "other magic": (b"GGML" + GOOD[4:], ["b'GGML'", "b'GGUF'", "not a GGUF"]),
    "zip": (b"PK\x03\x04" + bytes(60), ["not a GGUF"]),
    "magic only": (b"GGUF", ["byte 4", "version"]),
    "v1": (struct.pack("<4sIII", b"GGUF", 1, 0, 0), ["version 1", "version 2 or 3"]),  # B021
    "v0": (raw.build(version=0), ["version 0", "2 or 3"]),
    "v4": (raw.build(version=4), ["version 4", "2 or 3"]),
    "big-endian": (struct.pack(">4sIQQ", b"GGUF", 3, 0, 0), ["big-endian"]),  # B019
    "big-endian magic": (struct.pack(">4sIQQ", b"FUGG", 3, 0, 0), ["big-endian"]),
    "no counts": (GOOD[:8], ["byte 8", "number of tensors"]),
    "tensor count huge": (raw.build(n_tensors=HUGE), [str(HUGE), "tensors", "byte 8"]),  # B011
    "tensor count -1": (raw.build(n_tensors=2**64 - 1), [str(2**64 - 1)]),
    "tensor count one too many": (raw.build([], [raw.tensor("t", [8], 0)], bytes(32), n_tensors=2), ["byte"]),
    "key count huge": (raw.build(n_keys=HUGE), [str(HUGE), "metadata keys", "byte 16"]),
    "key count one too many": (raw.build([raw.u32("k", 1)], n_keys=2), ["metadata key"]),
    "key length huge": (raw.build([struct.pack("<Q", HUGE) + bytes(8)]), [str(HUGE), "metadata key"]),
    "key empty": (raw.build([raw.u32("", 1)]), ["0 bytes", "metadata key"]),
    "key not utf-8": (raw.build([raw.u32(b"k\xff", 1)]), ["UTF-8", "byte 24"]),
    "key with nul": (raw.build([raw.u32("k\0x", 1)]), ["NUL"]),
    "key twice": (raw.build([raw.u32("dup.key", 1), raw.u32("dup.key", 1)]), ["'dup.key'", "second time"]),
    "key control characters": (raw.build([raw.u32("a\x1b[2J\r\n", 1)] * 2), [r"'a\x1b[2J\r\n'"]),  # B025
    "value type unknown": (raw.build([raw.key_value("k", 13, bytes(8))]), ["value type 13", "'k'", "0 to 12"]),
    "value type huge": (raw.build([raw.key_value("k", 2**32 - 1, bytes(8))]), [str(2**32 - 1), "'k'"]),
    "value cut": (raw.build([raw.key_value("cut.key", T.UINT64, bytes(4))]), ["'cut.key'", "8 bytes", "cut off"]),
    "string length huge": (raw.build([raw.key_value("k", T.STRING, struct.pack("<Q", HUGE))]), ["'k'", str(HUGE)]),  # B013
    "string length -1": (raw.build([raw.key_value("k", T.STRING, struct.pack("<Q", 2**64 - 1))]), ["'k'"]),
    "string of 1 GiB, no data": (raw.build([raw.key_value("k", T.STRING, struct.pack("<Q", 1 << 30))]), ["'k'", "cut off"]),  # B012
    "array length huge": (raw.build([raw.array("k", T.UINT8, HUGE, b"")]), ["'k'", str(HUGE)]),
    "array size wraps": (raw.build([raw.array("k", T.UINT64, 2**61 + 1, bytes(8))]), ["'k'", str(2**61 + 1)]),
    "string array length huge": (raw.build([raw.array("k", T.STRING, HUGE, b"")]), ["'k'", str(HUGE)]),
    "string array cut": (raw.build([raw.array("k", T.STRING, 3, raw.text("ab") + raw.text("cd") + bytes(8))], cut=-3), ["string 2 of key 'k'"]),
    "string array too long": (raw.build([raw.array("k", T.STRING, 4, raw.text("ab") + bytes(8))]), ["'k'"]),
    "string in array huge": (raw.build([raw.array("k", T.STRING, 2, raw.text("ab") + struct.pack("<Q", HUGE))]), ["string 1 of key 'k'"]),
    "array of arrays": (raw.build([raw.array("k", T.ARRAY, 1, struct.pack("<IQ", T.UINT8, 1) + b"x")]), ["array of arrays", "'k'"]),
    "array element type unknown": (raw.build([raw.array("k", 99, 0, b"")]), ["99", "elements of key 'k'"]),
    "alignment 0": (alignment(T.UINT32, struct.pack("<I", 0)), ["general.alignment", "int 0", "power of two"]),  # B014
    "alignment 3": (alignment(T.UINT32, struct.pack("<I", 3)), ["general.alignment", "int 3"]),
    "alignment -8": (alignment(T.INT32, struct.pack("<i", -8)), ["general.alignment", "int -8"]),
    "alignment 2^30": (alignment(T.UINT32, struct.pack("<I", 1 << 30)), ["general.alignment", str(1 << 30)]),
    "alignment 2^31": (alignment(T.UINT32, struct.pack("<I", 1 << 31)), ["general.alignment"]),  # B015
    "alignment 2^32-1": (alignment(T.UINT32, struct.pack("<I", 2**32 - 1)), ["general.alignment"]),
    "alignment 2^63": (alignment(T.UINT64, struct.pack("<Q", 1 << 63)), ["general.alignment"]),
    "alignment as float": (alignment(T.FLOAT32, struct.pack("<f", 32)), ["general.alignment", "float 32.0"]),
    "alignment as bool": (alignment(T.BOOL, b"\1"), ["general.alignment", "bool True"]),
    "alignment as string": (alignment(T.STRING, raw.text("32")), ["general.alignment", "string '32'"]),
    "alignment as array": (raw.build([raw.array("general.alignment", T.UINT32, 1, bytes(4))]), ["general.alignment", "array"]),
    "n_dims 0": (one_tensor(n_dims=0), ["0 dimensions", "'bad.weight'", "1 to 4"]),
    "n_dims 5": (one_tensor(ne=(1,) * 5), ["5 dimensions", "'bad.weight'"]),  # B008
    "n_dims 9": (one_tensor(ne=(1,) * 9), ["9 dimensions"]),
    "n_dims 255": (one_tensor(n_dims=255), ["255 dimensions"]),  # B009
    "n_dims 10^6": (one_tensor(n_dims=10**6), ["1000000 dimensions"]),  # B010
    "n_dims 2^32-1": (one_tensor(n_dims=2**32 - 1), [f"{2**32 - 1} dimensions"]),
    "dim 0": (one_tensor(ne=(8, 0)), ["(0, 8)", "'bad.weight'"]),  # B052
    "first dim 0": (one_tensor(ne=(0,)), ["(0,)", "'bad.weight'"]),
    "dim 2^64-1": (one_tensor(ne=(2**64 - 1, 2)), ["'bad.weight'", "inside the file"]),
    "product wraps to 0": (one_tensor(ne=(2**32, 2**32)), ["'bad.weight'", "inside the file"]),
    "product wraps to 4": (one_tensor(ne=(2**62 + 1, 4)), ["'bad.weight'"]),
    "bytes wrap": (one_tensor(ne=(2**62 + 8,)), ["'bad.weight'"]),
    "tensor too large": (one_tensor(ne=(65,)), ["'bad.weight'", "inside the file", "cut off"]),  # B002
    "offset past the end": (one_tensor(offset=1 << 20), ["'bad.weight'", "inside the file"]),  # B001
    "offset at the end": (one_tensor(offset=256), ["'bad.weight'"]),
    "offset + size wraps": (one_tensor(ne=(16,), offset=2**64 - 32), ["'bad.weight'", str(2**64)[:8]]),  # B005
    "offset misaligned": (one_tensor(offset=4), ["'bad.weight'", "offset 4", "multiple of 32"]),
    "no data": (one_tensor(data=0), ["'bad.weight'", "inside the file"]),
    "overlap whole": (two_tensors(0), ["'one'", "'two'", "overlap"]),
    "overlap part": (two_tensors(32), ["'one'", "'two'", "overlap"]),
    "tensor twice": (raw.build([], [raw.tensor("dup", [8], 0), raw.tensor("dup", [8], 32)], bytes(64)), ["'dup'", "second time"]),
    "tensor name empty": (raw.build([], [raw.tensor("", [8], 0)], bytes(64)), ["tensor name", "0 bytes"]),
    "tensor name long": (raw.build([], [raw.tensor("x" * 256, [8], 0)], bytes(64)), ["tensor name", "256 bytes"]),
    "tensor name not utf-8": (raw.build([], [raw.tensor(b"\xc3(", [8], 0)], bytes(64)), ["UTF-8"]),
    "tensor name control": (raw.build([], [raw.tensor("a\nb\x1b", [0], 0)], bytes(64)), [r"'a\nb\x1b'"]),
    "entry cut": (raw.build([], [raw.tensor("t.x", [8, 8], 0)], cut=24 + 38), ["28 bytes for tensor 't.x'", "cut off"]),
    "rows no multiple of 32": (one_tensor(ne=(48, 2), type_id=Q.Q8_0), ["'bad.weight'", "48", "multiple of 32", "Q8_0"]),
    "rows no multiple of 256": (one_tensor(ne=(288,), type_id=Q.IQ2_XXS, data=4096), ["288", "multiple of 256", "IQ2_XXS"]),  # B035
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_refused(tmp_path, case):
    data, words = BROKEN[case]
    path = tmp_path / "broken.gguf"
    path.write_bytes(data)
    start = time.process_time()
    for opener in (open_gguf, ModelFile.open):
        with pytest.raises(GGUFError) as caught:
            opener(path)
        message = str(caught.value)
        assert message.startswith(f"{path}: "), message
        assert "found" in message and "expected" in message, message
        assert message.isprintable(), message
        for word in words:
            assert word in message, message
    assert time.process_time() - start < 0.5


def test_the_table_breaks_one_thing_at_a_time(tmp_path):
    path = tmp_path / "good.gguf"
    for data in (GOOD, one_tensor(), two_tensors(64), alignment(T.UINT32, struct.pack("<I", 32))):
        path.write_bytes(data)
        open_gguf(path)


@pytest.mark.parametrize("type_id", [4, 31, 38, 42, 255, 2**31, 2**32 - 1])
def test_unknown_quant_type(tmp_path, type_id):  # B032
    path = tmp_path / "t.gguf"
    path.write_bytes(one_tensor(type_id=type_id))
    with pytest.raises(UnsupportedError) as caught:
        open_gguf(path)
    for word in (
        str(path),
        "'bad.weight'",
        f"type {type_id},",
        "Q4_K (12)",
        "IQ2_XXS (16)",
        "newer version",
    ):
        assert word in str(caught.value)


@pytest.mark.parametrize("qtype, size", [(Q.F64, 8), (Q.I8, 1), (Q.I64, 8), (Q.I32, 4)])
def test_types_that_are_no_weights_are_refused_when_used(tmp_path, qtype, size):
    path = tmp_path / "t.gguf"
    path.write_bytes(one_tensor(type_id=qtype))
    with ModelFile.open(path) as model:
        assert model.raw("bad.weight").shape == (8 * size,)
        with pytest.raises(UnsupportedError, match=f"bad.weight.*{qtype.name}.*Q4_K"):
            model.weight("bad.weight")


@pytest.mark.parametrize("wrong, right", [(Q.Q4_0, Q.Q8_0), (Q.Q8_0, Q.Q4_0), (Q.MXFP4, Q.Q5_0)])
def test_other_numbering_of_quant_types(tmp_path, wrong, right):  # B033
    """The directory says one type, the distance to the next tensor fits another."""
    block_bytes = gguf.GGML_QUANT_SIZES[right][1]
    next_offset = 64 * block_bytes
    tensors = [raw.tensor("a", [64 * 32], 0, wrong), raw.tensor("b", [8], next_offset)]
    path = tmp_path / "t.gguf"
    path.write_bytes(raw.build([], tensors, bytes(next_offset + 4096)))
    with pytest.raises(GGUFError, match=f"'a'.*{right.name}.*number"):
        open_gguf(path)
    path.write_bytes(
        raw.build([], [raw.tensor("a", [64 * 32], 0, right), tensors[1]], bytes(next_offset + 4096))
    )
    open_gguf(path)


def test_cut_anywhere(tmp_path):  # B002, B003
    """Every length of the header, then samples of the data up to the last byte."""
    tiny = write_tiny(tmp_path / "tiny.gguf", n_layer=1, n_expert=2, tokenizer=False)
    whole = tiny.path.read_bytes()
    data_offset = open_gguf(tiny.path).data_offset
    path = tmp_path / "cut.gguf"
    path.write_bytes(whole)
    for length in [*range(len(whole) - 1, data_offset, -997), *range(data_offset, -1, -1)]:
        os.truncate(path, length)
        with pytest.raises(GGUFError) as caught:
            open_gguf(path)
        assert str(path) in str(caught.value)


def test_last_expert_slice_missing(tmp_path):  # B004
    tiny = write_tiny(tmp_path / "tiny.gguf")
    with open(tiny.path, "r+b") as file:
        file.truncate(os.path.getsize(tiny.path) - 1)
    with pytest.raises(GGUFError, match="blk.1.ffn_down_exps.weight.*cut off"):
        ModelFile.open(tiny.path)


def test_zero_byte_head(tmp_path):  # B052
    path = tmp_path / "t.gguf"
    path.write_bytes(raw.build([], [raw.tensor("output.weight", [64, 0], 0)], bytes(64)))
    with pytest.raises(GGUFError, match="output.weight"):
        open_gguf(path)


@without_sanitizer
def test_large_claims_cost_no_memory(tmp_path):  # B011, B012
    """Claims that the (sparse) file does have room for are limited all the same."""
    cases = {
        "strings": raw.build([raw.array("k", T.STRING, (1 << 30) - 100, b"")]),
        "numbers": raw.build([raw.array("k", T.FLOAT32, 1 << 31, b"")]),
        "string": raw.build([raw.key_value("k", T.STRING, struct.pack("<Q", 1 << 32))]),
        "keys": raw.build(n_keys=1 << 27),
        "tensors": raw.build(n_tensors=1 << 27),
    }
    path = tmp_path / "sparse.gguf"
    for name, data in cases.items():
        path.write_bytes(data)
        os.truncate(path, 16 << 30)
        start, before = time.process_time(), _peak_kb()
        with pytest.raises(GGUFError, match="at most"):
            open_gguf(path)
        assert time.process_time() - start < 0.2, name
        assert _peak_kb() - before < 10_000, name


def test_what_is_no_file(tmp_path):
    cases = {
        tmp_path / "missing.gguf": "no such file",
        tmp_path: "directory",
        "a\0b": "NUL",
        tmp_path / ("x" * 300): "name",
    }
    os.mkfifo(tmp_path / "pipe.gguf")
    cases[tmp_path / "pipe.gguf"] = "pipe"
    cases["/dev/zero"] = "device"
    (tmp_path / "loop.gguf").symlink_to("loop.gguf")
    cases[tmp_path / "loop.gguf"] = "loop"
    for path, word in cases.items():
        with pytest.raises(GGUFError, match=word):
            open_gguf(path)
        if path != tmp_path:
            with pytest.raises(GGUFError, match=word):
                ModelFile.open(path)
    with pytest.raises(TypeError):
        open_gguf(17)


def test_no_permission(tmp_path):
    path = tmp_path / "secret.gguf"
    path.write_bytes(GOOD)
    path.chmod(0)
    nobody = 65534
    if os.geteuid() == 0:
        os.seteuid(nobody)
    try:
        for opener in (open_gguf, ModelFile.open):
            with pytest.raises(GGUFError, match="secret.gguf.*permission"):
                opener(path)
    finally:
        if os.getuid() == 0:
            os.seteuid(0)
        path.chmod(stat.S_IRUSR | stat.S_IWUSR)


def test_path_with_control_characters_is_escaped(tmp_path):
    with pytest.raises(GGUFError) as caught:
        open_gguf(tmp_path / "a\n\x1b[0m.gguf")
    assert str(caught.value).isprintable()


def test_failed_open_leaves_no_descriptor(tmp_path):
    path = tmp_path / "broken.gguf"
    path.write_bytes(GOOD[:-1])
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        for opener in (open_gguf, ModelFile.open):
            with pytest.raises(MoeEngineError):
                opener(path)
    assert len(os.listdir("/proc/self/fd")) == before


def test_file_that_shrinks_while_it_is_read(tmp_path, monkeypatch):
    path = tmp_path / "t.gguf"
    path.write_bytes(raw.build([raw.array("k", T.STRING, 4000, raw.text("word") * 4000)]))
    real = os.pread
    monkeypatch.setattr("moeengine.loader.header_reader.FIRST_READ_BYTES", 64)
    monkeypatch.setattr(
        "moeengine.loader.header_reader.os.pread",
        lambda fd, n, at: real(fd, n, at) if at < 1000 else b"",
    )
    with pytest.raises(GGUFError, match="shrank"):
        open_gguf(path)


def test_array_lengths_are_counted_in_elements(tmp_path):
    """A float array of odd length does not shift what follows."""
    path = write_gguf(tmp_path / "a.gguf", "none", {"a": np.ones(513, np.float32), "b": 5}, {})
    assert open_gguf(path).metadata["b"] == 5


def _peak_kb():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
