"""Files that appear whole or not at all, and what they never replace."""

import os

import pytest

from moeengine.loader.whole_file import read_file, whole_file


def write(path, data=b"new"):
    with whole_file(path) as file:
        file.write(data)


def test_replaces_a_file_with_the_rights_of_a_new_one(tmp_path):
    path, plain = tmp_path / "a", tmp_path / "plain"
    plain.write_bytes(b"")
    for _ in range(2):
        write(path)
    assert path.read_bytes() == b"new" and path.stat().st_mode == plain.stat().st_mode
    assert sorted(os.listdir(tmp_path)) == ["a", "plain"]


def test_a_failure_leaves_what_was_there(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"old")
    with pytest.raises(ZeroDivisionError), whole_file(path) as file:
        file.write(b"half")
        1 / 0
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["a"]


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "link").symlink_to("target")
    for data in (b"1", b"2"):
        write(tmp_path / "link", data)
        assert (tmp_path / "link").is_symlink() and (tmp_path / "target").read_bytes() == data


def test_pipes_devices_and_folders_are_left_alone(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    os.mkdir(tmp_path / "folder")
    for name in ("pipe", "folder", ""):
        with pytest.raises(FileExistsError, match="found a folder, pipe or device"):
            write(tmp_path / name)
    assert (tmp_path / "pipe").is_fifo() and sorted(os.listdir(tmp_path)) == ["folder", "pipe"]


def test_the_error_names_the_file_asked_for(tmp_path):
    with pytest.raises(FileNotFoundError) as error:
        write(tmp_path / "none" / "a")
    assert error.value.filename == str(tmp_path / "none" / "a")


def test_only_what_has_an_end_is_read(tmp_path):
    (tmp_path / "file").write_bytes(b"abc")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    os.mkfifo(tmp_path / "pipe")
    assert read_file(tmp_path / "file") == read_file(tmp_path / "link") == b"abc"
    for path in (tmp_path / "pipe", "/dev/zero", tmp_path, tmp_path / "none"):
        with pytest.raises(OSError) as caught:
            read_file(path)
        assert str(caught.value.filename) == str(path)
