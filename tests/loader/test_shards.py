"""Sets of shards: opened from any of them, complete or refused with full paths."""

import os
import shutil

import gguf
import numpy as np
import pytest

from moeengine.errors import GGUFError
from moeengine.loader.model_file import ModelFile
from tests.loader import raw_gguf as raw
from tests.tiny import write_tiny

T = gguf.GGUFValueType


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return write_tiny(tmp_path_factory.mktemp("made") / "big.v1.5.gguf", n_shards=3)


@pytest.fixture
def folder(made, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(made.path.parent, folder)
    return folder


def shard(folder, number, count=3):
    return folder / f"big.v1.5-{number:05d}-of-{count:05d}.gguf"


def check_same(model, made):
    assert set(model.tensors) == set(made.tensors) and model.architecture == made.arch
    assert len(model.files) == len(model.maps) == 3
    assert [file.get_int("split.no") for file in model.files] == [0, 1, 2]
    for name, (array, _) in made.tensors.items():
        assert model.raw(name).tobytes() == array.tobytes()
        assert model.files[model.tensors[name].shard].tensors[name] is model.tensors[name]


@pytest.mark.parametrize("number", [1, 2, 3])
def test_from_any_shard(folder, made, number):  # B041, B042, B044
    with ModelFile.open(shard(folder, number)) as model:
        check_same(model, made)
        assert model.total_bytes == sum(path.stat().st_size for path in folder.iterdir())
        assert len(model.metadata["tokenizer.ggml.tokens"]) == made.hparams["n_vocab"]


def test_from_the_folder(folder, made):
    for path in (folder, str(folder) + "/", os.fsencode(folder)):
        with ModelFile.open(path) as model:
            check_same(model, made)


def test_folder_with_a_projector_and_other_files(folder, made):
    shutil.copy(shard(folder, 1), folder / "mmproj-model-f16.gguf")
    (folder / "README.md").write_text("x")
    (folder / "sub.gguf.d").mkdir()
    with ModelFile.open(folder) as model:
        check_same(model, made)


def test_relative_path_and_other_working_directory(folder, made, monkeypatch):  # B048
    monkeypatch.chdir(folder)
    with ModelFile.open(shard(folder, 2).name) as model:
        monkeypatch.chdir("/")
        check_same(model, made)
    monkeypatch.chdir(folder.parent)
    shard(folder, 3).unlink()
    with pytest.raises(GGUFError, match=f"{folder}/big.v1.5-00003-of-00003.gguf"):
        ModelFile.open("model/big.v1.5-00001-of-00003.gguf")


@pytest.mark.parametrize("link_name", ["big.v1.5-00001-of-00003.gguf", "short.gguf"])
def test_symlink_to_a_shard(folder, made, tmp_path, link_name):  # B048
    link = tmp_path / link_name
    link.symlink_to("model/" + shard(folder, 1).name)
    with ModelFile.open(link) as model:
        check_same(model, made)


def test_folder_of_symlinks_to_hashed_names(folder, made, tmp_path):
    """A download cache: names only in the links, contents elsewhere under other names."""
    blobs, links = tmp_path / "blobs", tmp_path / "links"
    blobs.mkdir()
    links.mkdir()
    for i in (1, 2, 3):
        shard(folder, i).rename(blobs / f"{i * 7:040x}")
        shard(links, i).symlink_to(f"../blobs/{i * 7:040x}")
    for path in (links, shard(links, 2)):
        with ModelFile.open(path) as model:
            check_same(model, made)


def test_symlinked_folder(folder, made, tmp_path):
    (tmp_path / "link").symlink_to(folder)
    with ModelFile.open(tmp_path / "link") as model:
        check_same(model, made)


def test_one_of_one(tmp_path):  # B049
    tiny = write_tiny(
        tmp_path / "x.gguf", metadata={"split.no": (0, T.UINT16), "split.count": (1, T.UINT16)}
    )
    for name in ("one-00001-of-00001.gguf", "plain.gguf"):
        tiny.path.rename(tmp_path / name)
        with ModelFile.open(tmp_path / name) as model:
            assert set(model.tensors) == set(tiny.tensors)
        (tmp_path / name).rename(tiny.path)
    bare = write_tiny(tmp_path / "bare-00001-of-00001.gguf")
    with ModelFile.open(bare.path) as model:
        assert set(model.tensors) == set(bare.tensors)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_missing_shard(folder, number):  # B044, B049
    missing = shard(folder, number)
    missing.unlink()
    for path in [folder, *(p for p in sorted(folder.iterdir()))]:
        with pytest.raises(GGUFError) as caught:
            ModelFile.open(path)
        assert "all 3" in str(caught.value) and str(missing) in str(caught.value)


def test_dangling_link_among_the_shards(folder):
    shard(folder, 2).unlink()
    shard(folder, 2).symlink_to("nowhere")
    with pytest.raises(GGUFError, match="00002-of-00003.gguf: .*no such file"):
        ModelFile.open(shard(folder, 1))


def test_cut_shard(folder):
    os.truncate(shard(folder, 3), os.path.getsize(shard(folder, 3)) - 1)
    with pytest.raises(GGUFError, match=f"{shard(folder, 3)}: tensor .*cut off"):
        ModelFile.open(shard(folder, 1))


@pytest.mark.parametrize("source, target", [(1, 2), (2, 1), (2, 3), (3, 2)])
def test_duplicate_shard(folder, source, target):
    shutil.copy(shard(folder, source), shard(folder, target))
    with pytest.raises(
        GGUFError,
        match=f"{shard(folder, target)}.*split.no.*found {source - 1}, expected {target - 1}",
    ):
        ModelFile.open(folder)


def test_renamed_shard(folder):
    for name in ("big.gguf", "big-00001-of-00002.gguf"):
        renamed = folder / name
        shard(folder, 1).rename(renamed)
        with pytest.raises(GGUFError) as caught:
            ModelFile.open(renamed)
        assert str(renamed) in str(caught.value) and "3" in str(caught.value)
        renamed.rename(shard(folder, 1))


def test_name_of_a_shard_without_split_keys(tmp_path):
    tiny = write_tiny(tmp_path / "x-00001-of-00002.gguf")
    with pytest.raises(GGUFError, match="split.count absent"):
        ModelFile.open(tiny.path)


def set_of(folder, headers, tensors=None):
    """Write a set of bare shards; `headers` are lists of extra metadata entries."""
    n = len(headers)
    folder.mkdir()
    for i, keys in enumerate(headers):
        entries = [raw.tensor((tensors or [f"t{j}" for j in range(n)])[i], [8], 0)]
        (folder / f"s-{i + 1:05d}-of-{n:05d}.gguf").write_bytes(raw.build(keys, entries, bytes(32)))
    return folder / f"s-00001-of-{n:05d}.gguf"


def split(no, count, total=None):
    return [raw.u32("split.no", no), raw.u32("split.count", count)] + (
        [raw.u32("split.tensors.count", total)] if total else []
    )


def test_bare_set_opens(tmp_path):
    with ModelFile.open(set_of(tmp_path / "s", [split(0, 2, 2), split(1, 2, 2)])) as model:
        assert list(model.tensors) == ["t0", "t1"] and model.tensors["t1"].shard == 1
    with ModelFile.open(set_of(tmp_path / "u", [split(0, 2), split(1, 2)])) as model:
        assert len(model.tensors) == 2


MIXED = {
    "architecture": ([split(0, 2) + [raw.string("general.architecture", "llama")],
                      split(1, 2) + [raw.string("general.architecture", "olmoe")]], "general.architecture.*olmoe.*llama"),
    "name": ([split(0, 2) + [raw.string("general.name", "a")], split(1, 2) + [raw.string("general.name", "b")]], "general.name"),
    "count": ([split(0, 2), split(1, 3)], "split.count.*found 3, expected 2"),
    "number": ([split(0, 2), split(0, 2)], "split.no.*found 0, expected 1"),
    "tensor total": ([split(0, 2, 2), split(1, 2, 5)], "split.tensors.count"),
    "tensors missing": ([split(0, 2, 3), split(1, 2, 3)], "found 2 tensors in 2 shards, expected 3"),
    "no number": ([split(0, 2), [raw.u32("split.count", 2)]], "split.no.*not found"),
    "no keys": ([split(0, 2), []], "split.count.*not found"),
    "number is text": ([split(0, 2), [raw.string("split.no", "1"), raw.u32("split.count", 2)]], "split.no.*string '1'"),
}  # fmt: skip


@pytest.mark.parametrize("case", MIXED)
def test_mixed_set(tmp_path, case):
    headers, pattern = MIXED[case]
    first = set_of(tmp_path / "s", headers)
    with pytest.raises(GGUFError, match=pattern) as caught:
        ModelFile.open(first)
    assert str(tmp_path) in str(caught.value)


def test_tensor_in_two_shards(tmp_path):
    first = set_of(tmp_path / "s", [split(0, 2), split(1, 2)], tensors=["same", "same"])
    with pytest.raises(
        GGUFError, match="s-00002-of-00002.gguf: tensor 'same'.*s-00001-of-00002.gguf"
    ):
        ModelFile.open(first)


@pytest.mark.parametrize("value", [100_000, 2**32 - 1])
def test_absurd_split_count(tmp_path, value):
    path = tmp_path / "x-00001-of-00002.gguf"
    path.write_bytes(raw.build([raw.u32("split.count", value)]))
    with pytest.raises(GGUFError, match=f"split.count.*{value}"):
        ModelFile.open(path)


def test_large_split_count_lists_a_few(tmp_path):
    path = tmp_path / "x-00001-of-99999.gguf"
    path.write_bytes(raw.build([raw.u32("split.count", 99_999)]))
    with pytest.raises(GGUFError, match="all 99999: .*00002-of-99999.gguf.* and more") as caught:
        ModelFile.open(path)
    assert len(str(caught.value)) < 4000


def test_folder_without_or_with_several_models(tmp_path):
    with pytest.raises(GGUFError, match="without a .gguf"):
        ModelFile.open(tmp_path)
    for name in ("a.gguf", "b-00001-of-00002.gguf", "b-00002-of-00002.gguf"):
        (tmp_path / name).write_bytes(raw.build())
    with pytest.raises(GGUFError, match="2 models.*a.gguf.*b-00001-of-00002.gguf.*give the path"):
        ModelFile.open(tmp_path)


def test_views_of_every_shard_outlive_the_model(folder, made):
    model = ModelFile.open(folder)
    views = {name: model.raw(name) for name in made.tensors}
    model.close()
    del model
    assert all(
        np.array_equal(view.reshape(-1), made.tensors[name][0].reshape(-1).view(np.uint8))
        for name, view in views.items()
    )
