"""Sound files: everything comes out as the gguf package's own reader and writer have it."""

import gc
import os
import struct
import time

import gguf
import numpy as np
import pytest

from moeengine.kernels.table import quant_types
from moeengine.loader.gguf_file import open_gguf
from moeengine.loader.metadata import StringArray
from moeengine.loader.tensor_info import WEIGHT_TYPES
from tests.loader import raw_gguf as raw
from tests.loader.conditions import without_sanitizer
from tests.tiny import write_gguf, write_tiny

T = gguf.GGUFValueType


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return write_tiny(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


def test_same_as_the_package_reader(tiny):
    file, reader = open_gguf(tiny.path), gguf.GGUFReader(tiny.path)
    assert (
        file.version == 3
        and file.alignment == reader.alignment
        and file.data_offset == reader.data_offset
    )
    assert file.file_size == os.path.getsize(tiny.path)
    fields = {key: field for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    assert list(file.metadata) == list(fields)
    for key, field in fields.items():
        value = file.metadata[key]
        assert (
            value.tolist() if isinstance(value, (np.ndarray, StringArray)) else value
        ) == field.contents(), key
        vtype = file.value_types[key]
        assert list(vtype if isinstance(vtype, tuple) else (vtype,)) == field.types[:2], key
    assert list(file.tensors) == [t.name for t in reader.tensors]
    for theirs in reader.tensors:
        info = file.tensors[theirs.name]
        assert (info.offset, info.n_bytes, info.qtype) == (
            theirs.data_offset,
            theirs.n_bytes,
            theirs.tensor_type,
        )
        assert info.shape == tuple(int(n) for n in theirs.shape[::-1])
        assert info.row_bytes * int(np.prod(info.shape[:-1])) == info.n_bytes


def test_every_value_type(tmp_path):
    scalars = {
        T.UINT8: 255, T.INT8: -128, T.UINT16: 65535, T.INT16: -32768, T.UINT32: 2**32 - 1, T.INT32: -(2**31),
        T.UINT64: 2**64 - 1, T.INT64: -(2**63), T.FLOAT32: 0.5, T.FLOAT64: 0.1, T.BOOL: True, T.STRING: "a\0b\n\x1b",
    }  # fmt: skip
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "none")
    for vtype, value in scalars.items():
        writer.add_key_value(f"scalar.{vtype.name}", value, vtype)
        writer.add_key_value(f"array.{vtype.name}", [value] * 3, T.ARRAY, sub_type=vtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    file = open_gguf(tmp_path / "a.gguf")
    for vtype, value in scalars.items():
        found = file.metadata[f"scalar.{vtype.name}"]
        assert found == value and type(found) is type(value)
        assert file.metadata[f"array.{vtype.name}"].tolist() == [value] * 3
    assert file.metadata["array.UINT8"].dtype == np.uint8  # B026: the file's own width
    assert not file.metadata["array.INT32"].flags.writeable


@pytest.mark.parametrize("version", [2, 3])
def test_versions(tmp_path, version):  # B022
    path = tmp_path / "v.gguf"
    path.write_bytes(
        raw.build([raw.u32("k", 7)], [raw.tensor("t", [4], 0)], bytes(16), version=version)
    )
    file = open_gguf(path)
    assert file.version == version and file.metadata == {"k": 7} and file.tensors["t"].n_bytes == 16


@pytest.mark.parametrize("alignment", [1, 8, 16, 64, 4096, 1 << 20])
def test_tensors_lie_right_for_every_header_length(tmp_path, alignment):  # B017, B100
    arrays = {f"t{i}": np.arange(3 + i, dtype=np.float32) + 10 * i for i in range(3)}
    for pad in range(0, 64, 1 if alignment in (16, 64) else 13):
        tensors = {name: (array, gguf.GGMLQuantizationType.F32) for name, array in arrays.items()}
        path = write_gguf(
            tmp_path / "a.gguf", "none", {"pad": "x" * pad}, tensors, alignment=alignment
        )
        file, data = open_gguf(path), path.read_bytes()
        assert file.alignment == alignment
        for name, array in arrays.items():
            info = file.tensors[name]
            assert data[info.offset : info.offset + info.n_bytes] == array.tobytes()


@pytest.mark.parametrize(
    "vtype, code",
    [(T.UINT8, "B"), (T.INT16, "<h"), (T.INT32, "<i"), (T.UINT64, "<Q"), (T.INT64, "<q")],
)
def test_alignment_of_any_integer_type(tmp_path, vtype, code):
    key = raw.key_value("general.alignment", vtype, struct.pack(code, 64))
    path = tmp_path / "a.gguf"
    path.write_bytes(raw.build([key], [raw.tensor("t", [4], 0)], bytes(16), alignment=64))
    assert open_gguf(path).alignment == 64


def test_metadata_only(tiny):
    file = open_gguf(tiny.path, tensors=False)
    assert file.tensors == {} and file.get_str("general.architecture") == tiny.arch
    assert len(file.metadata["tokenizer.ggml.tokens"]) == tiny.hparams["n_vocab"]


def test_sizes_of_quant_types_are_the_kernels():  # B034
    for name, (type_id, block, block_bytes) in quant_types().items():
        qtype = gguf.GGMLQuantizationType(type_id)
        assert (qtype.name, *gguf.GGML_QUANT_SIZES[qtype]) == (name, block, block_bytes)
        assert qtype in WEIGHT_TYPES


def test_file_without_tensors_or_keys(tmp_path):
    path = tmp_path / "bare.gguf"
    path.write_bytes(raw.build())
    assert open_gguf(path).tensors == {} and open_gguf(path).metadata == {}
    path.write_bytes(
        raw.build([raw.string("general.architecture", "llama"), raw.array("e", T.STRING, 0, b"")])
    )
    assert len(open_gguf(path).metadata["e"]) == 0


def test_gaps_and_trailing_bytes_and_any_order(tmp_path):
    path = tmp_path / "gaps.gguf"
    tensors = [raw.tensor("last", [8], 8192), raw.tensor("first", [8], 0)]
    path.write_bytes(raw.build([], tensors, bytes(8192 + 32 + 777)))
    assert list(open_gguf(path).tensors) == ["last", "first"]


def test_float_types_and_stacked_experts(tmp_path):  # B037
    q = gguf.GGMLQuantizationType
    tensors = {
        "token_embd.weight": (np.ones((7, 5), np.float16), q.F16),
        "router": (np.ones((3, 10), np.uint8), q.BF16),
        "exps": (np.ones((4, 3, 5), np.float16), q.F16),
        "ids": (np.ones(3, np.int32), q.I32),
    }
    file = open_gguf(write_gguf(tmp_path / "a.gguf", "none", {}, tensors))
    assert [(t.shape, t.n_bytes) for t in file.tensors.values()] == [
        ((7, 5), 70),
        ((3, 5), 30),
        ((4, 3, 5), 120),
        ((3,), 12),
    ]


def test_strings_that_are_not_text(tmp_path):  # B025, B163
    words = ["", "a\r\nb", "\x1b[31m", "\0", b"\xff\xfe", "\ufffd", "é\U0001f600"]
    path = tmp_path / "s.gguf"
    path.write_bytes(
        raw.build(
            [
                raw.array("w", T.STRING, len(words), b"".join(map(raw.text, words))),
                raw.string("s", b"\xff!"),
            ]
        )
    )
    found = open_gguf(path).metadata["w"]
    exact = [w if isinstance(w, bytes) else w.encode() for w in words]
    assert [found.raw(i) for i in range(len(found))] == exact
    assert (
        found.tolist()
        == list(found)
        == [found[i] for i in range(len(found))]
        == [w.decode("utf-8", "replace") for w in exact]
    )
    assert found[-1] == words[-1] and found[1:3] == words[1:3] and "\0" in found
    for wrong in (len(words), -len(words) - 1):
        with pytest.raises(IndexError):
            found[wrong]
    assert open_gguf(path).metadata["s"] == "\ufffd!"


def test_strings_across_every_read(tmp_path, monkeypatch):
    """The reader takes the file in growing pieces; the cuts may fall anywhere."""
    words = [f"w{i}" * (i % 5) for i in range(300)]
    path = tmp_path / "s.gguf"
    path.write_bytes(
        raw.build(
            [raw.array("w", T.STRING, len(words), b"".join(map(raw.text, words))), raw.u32("k", 1)]
        )
    )
    for first in (1, 3, 7, 64, 1000):
        monkeypatch.setattr("moeengine.loader.header_reader.FIRST_READ_BYTES", first)
        file = open_gguf(path)
        assert file.metadata["w"].tolist() == words and file.metadata["k"] == 1


@pytest.fixture(scope="module")
def large_vocabulary(tmp_path_factory):
    words = b"".join(raw.text(f"token{i:06d}") for i in range(152_000))
    merges = b"".join(raw.text(f"to ken{i:06d}") for i in range(152_000))
    keys = [
        raw.array("tokenizer.ggml.tokens", T.STRING, 152_000, words),
        raw.array("tokenizer.ggml.merges", T.STRING, 152_000, merges),
        raw.array("tokenizer.ggml.scores", T.FLOAT32, 152_000, bytes(4 * 152_000)),
    ]
    n_bytes = 40 << 30
    tensors = [raw.tensor("blk.0.ffn_up_exps.weight", [n_bytes // 4 // 1024, 1024], 0)]
    path = tmp_path_factory.mktemp("large") / "large.gguf"
    with open(path, "wb") as out:
        out.write(raw.build(keys, tensors))
        out.truncate(out.tell() + n_bytes)  # sparse
    return path


def test_large_vocabulary_and_file_open_fast(large_vocabulary):  # B094
    from moeengine.loader.model_file import ModelFile

    start = time.process_time()
    with ModelFile.open(large_vocabulary) as model:
        took = time.process_time() - start
        assert model.total_bytes > 40 << 30
        assert model.metadata["tokenizer.ggml.tokens"][151_999] == "token151999"
        assert model.metadata["tokenizer.ggml.tokens"].tolist()[77] == "token000077"
        resident, _ = model.maps[0].resident_pages(0, 1 << 30)
        assert resident * 4096 < 64 << 20
    assert took < 0.5
    assert os.stat(large_vocabulary).st_blocks * 512 < 64 << 20, (
        "not sparse: the test wrote a real 40 GB file"
    )


@without_sanitizer
def test_open_does_not_grow_memory(large_vocabulary):
    gc.collect()
    open_gguf(large_vocabulary)
    before = _resident_kb()
    for _ in range(10):
        open_gguf(large_vocabulary)
    assert _resident_kb() - before < 20_000


def _resident_kb():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))
