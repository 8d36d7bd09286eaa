"""An open model: typed metadata, tensor views, and what is left when it is closed."""

import ctypes
import gc
import os
import weakref

import gguf
import numpy as np
import pytest

from moeengine.errors import ClosedError, GGUFError
from moeengine.loader.model_file import ModelFile
from tests.tiny import write_tiny

T = gguf.GGUFValueType


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    extra = {
        "x.int": 7, "x.negative": -7, "x.float": 0.5, "x.inf": float("inf"), "x.nan": float("nan"), "x.bool": True,
        "x.text": "te\x1bxt", "x.ints": np.array([1, 2, 3], np.int32), "x.bytes": np.array([1, 2], np.uint8),
        "x.floats": np.array([0.5], np.float32), "x.bools": np.array([True, False]), "x.texts": ["a", "b"],
    }  # fmt: skip
    return write_tiny(tmp_path_factory.mktemp("m") / "tiny.gguf", metadata=extra)


@pytest.fixture
def model(tiny):
    with ModelFile.open(tiny.path) as model:
        yield model


def test_typed_metadata(model):
    assert model.get_int("x.int") == 7 and model.get_int("x.negative", lo=-7, hi=-7) == -7
    assert model.get_float("x.float") == 0.5 and model.get_float("x.int") == 7.0
    assert isinstance(model.get_float("x.int"), float)
    assert model.get_bool("x.bool") is True and model.get_str("x.text") == "te\x1bxt"
    assert model.get_array("x.ints", kind="int", length=3).tolist() == [1, 2, 3]
    assert model.get_array("x.ints", kind="float").dtype == np.int32
    assert model.get_array("x.bytes", kind="int").dtype == np.uint8
    assert model.get_array("x.texts", kind="str").tolist() == ["a", "b"]
    assert model.get_array("x.bools", kind="bool").tolist() == [True, False]
    assert model.get("x.int") == 7 and model.architecture == "qwen3moe"


def test_one_value_for_all_layers_or_one_each(model):
    assert model.get_per_layer("x.int", 3) == (7, 7, 7)
    assert model.get_per_layer("x.ints", 2, lo=1, hi=2) == (1, 2)  # those of layers that there are
    assert model.get_per_layer("absent", 2, 5) == (5, 5) and model.get_per_layer("absent", 2, (4, 6)) == (4, 6)
    for key, n, words in (("x.ints", 4, "4 elements, one a layer"), ("x.texts", 2, "an integer"), ("x.float", 1, "integer"),
                          ("x.bools", 2, "array of int"), ("absent", 1, "not found")):  # fmt: skip
        with pytest.raises(GGUFError, match=words):
            model.get_per_layer(key, n)
    with pytest.raises(GGUFError, match=r"int 3, expected an integer of at most 2 \(layer 2\)"):
        model.get_per_layer("x.ints", 3, hi=2)


def test_defaults(model):
    for getter in (
        model.get,
        model.get_int,
        model.get_float,
        model.get_bool,
        model.get_str,
        model.get_array,
    ):
        assert getter("absent", None) is None
        assert getter("absent", 5) == 5
        with pytest.raises(GGUFError, match="'absent'.*not found"):
            getter("absent")


REFUSED = [
    ("get_int", "x.bool", {}, "bool True.*an integer"),
    ("get_int", "x.float", {}, "float 0.5.*an integer"),
    ("get_int", "x.text", {}, r"string 'te\\x1bxt'.*an integer"),
    ("get_int", "x.ints", {}, "array of 3 int32.*an integer"),
    ("get_int", "x.int", {"lo": 8}, "int 7.*at least 8"),
    ("get_int", "x.int", {"hi": 6}, "int 7.*at most 6"),
    ("get_int", "x.int", {"lo": 1, "hi": 6}, "int 7.*from 1 to 6"),
    ("get_float", "x.bool", {}, "bool True.*a number"),
    ("get_float", "x.inf", {}, "float inf.*finite"),
    ("get_float", "x.nan", {}, "float nan.*finite"),
    ("get_float", "x.float", {"lo": 1.0}, "float 0.5.*at least 1.0"),
    ("get_bool", "x.int", {}, "int 7.*a bool"),
    ("get_str", "x.int", {}, "int 7.*a string"),
    ("get_array", "x.int", {}, "int 7.*an array"),
    ("get_array", "x.ints", {"kind": "str"}, "array of 3 int32.*array of str"),
    ("get_array", "x.texts", {"kind": "int"}, "array of 2 strings.*array of int"),
    ("get_array", "x.floats", {"kind": "int"}, "array of 1 float32"),
    ("get_array", "x.bools", {"kind": "int"}, "array of 2 bool"),
    ("get_array", "x.ints", {"length": 4}, "array of 3 int32.*4 elements"),
]


@pytest.mark.parametrize("getter, key, limits, pattern", REFUSED)
def test_wrong_values_are_refused_with_or_without_default(
    model, tiny, getter, key, limits, pattern
):
    for default in ((), (None,), (model.metadata[key],)):
        with pytest.raises(GGUFError, match=pattern) as caught:
            getattr(model, getter)(key, *default, **limits)
        assert f"{tiny.path}: key '{key}'" in str(caught.value) and str(caught.value).isprintable()


def test_tensors(model, tiny):
    assert list(model.tensors) == list(tiny.tensors)
    for name, (array, _) in tiny.tensors.items():
        view = model.raw(name)
        assert view.tobytes() == array.tobytes() and not view.flags.writeable
        assert view.shape == (*model.tensors[name].shape[:-1], model.tensors[name].row_bytes)
        assert ctypes.string_at(model.address(name), 16) == array.tobytes()[:16]
        assert view.ctypes.data == model.address(name)
    assert model.tensor_bytes == sum(array.nbytes for array, _ in tiny.tensors.values())


def test_missing_tensor_names_similar_ones(model):  # B036, B038
    with pytest.raises(
        GGUFError, match="'blk.0.ffn_up.weight'.*not found.*blk.0.ffn_up_exps.weight"
    ) as caught:
        model.tensor("blk.0.ffn_up.weight")
    assert "cut off" not in str(caught.value)
    for call in (model.address, model.raw, model.weight):
        with pytest.raises(GGUFError, match="'none'"):
            call("none")


def test_expected_shape(model):
    info = model.tensor("output_norm.weight", (64,))
    assert info is model.tensor("output_norm.weight", (1, 1, 64))
    with pytest.raises(GGUFError, match=r"output_norm.weight.*\(64,\).*\(2, 32\)"):
        model.tensor("output_norm.weight", (2, 32))


def test_unaligned_tensors_are_views_too(tmp_path):  # B100
    pad = {"pad": (np.zeros(1, np.int8), gguf.GGMLQuantizationType.I8)}
    weights = {"w": (np.arange(6, dtype=np.float32), gguf.GGMLQuantizationType.F32)}
    from tests.tiny import write_gguf

    for shift in range(4):
        path = write_gguf(
            tmp_path / "a.gguf", "none", {"s": "x" * shift}, pad | weights, alignment=1
        )
        with ModelFile.open(path) as model:
            view = model.raw("w")
            assert (
                view.ctypes.data
                == model.address("w")
                == model.maps[0].address + model.tensors["w"].offset
            )
            assert view.view(np.float32).tolist() == [0, 1, 2, 3, 4, 5]


def test_close(tiny):  # B124
    model = ModelFile.open(tiny.path)
    fd, view = model.maps[0].fd, model.raw("token_embd.weight")
    expected = view.tobytes()
    model.close()
    model.close()
    assert model.closed and not os.path.exists(f"/proc/self/fd/{fd}")
    for call in (model.raw, model.address):
        with pytest.raises(ClosedError, match="closed"):
            call("token_embd.weight")
    assert model.get_str("general.architecture") == "qwen3moe"
    gc.collect()
    assert view.tobytes() == expected
    assert _mapped(tiny.path)
    part = view[3:5]
    del view
    assert part.tobytes() == expected[3 * 68 : 5 * 68] and _mapped(tiny.path)
    del part
    assert not _mapped(tiny.path)


def test_freed_at_once_without_the_collector(tiny):  # B121, B122
    gc.collect()
    gc.disable()
    try:
        fds = len(os.listdir("/proc/self/fd"))
        for _ in range(50):
            model = ModelFile.open(tiny.path)
            model.raw("token_embd.weight").sum()
            gone = weakref.ref(model)
            del model
            assert gone() is None
        assert not _mapped(tiny.path) and len(os.listdir("/proc/self/fd")) == fds
    finally:
        gc.enable()


def test_context_manager_closes_on_errors(tiny):
    with pytest.raises(KeyError), ModelFile.open(tiny.path) as model:
        raise KeyError
    assert model.closed


def _mapped(path):
    with open("/proc/self/maps") as maps:
        return str(path) in maps.read()
