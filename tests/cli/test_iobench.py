"""iobench: a row for every way of reading, in text and in JSON."""

import json

import pytest

from moeengine.cli import main


def test_rows(tmp_path, capsys):
    path = tmp_path / "file"
    path.write_bytes(bytes(1 << 20))
    command = ["iobench", str(path), "--slice-kb", "16", "--seconds", "0.02", "--readers", "1", "3"]
    assert main([*command, "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {(r["method"], r["n_readers"]) for r in rows} >= {("buffered", 1), ("mapped", 3)}
    assert len(rows) == 8
    assert all(r["gb_s"] > 0 for r in rows if not r["method"].startswith("direct"))
    assert main(command) == 0
    assert "GB/s" in capsys.readouterr().out


def test_a_file_that_is_too_small(tmp_path, capsys):
    path = tmp_path / "file"
    path.write_bytes(bytes(1000))
    assert main(["iobench", str(path)]) == 1
    assert "1000 bytes" in capsys.readouterr().err


@pytest.mark.parametrize("options, words", [
    (("--seconds", "nan"), "seconds: found nan"), (("--seconds", "-1"), "seconds: found -1"), (("--slice-kb", "-4"), "slice_kb: found -4"),
    (("--readers", "0"), "readers: found 0"), (("--readers", "100000"), "expected an integer 1 to 256"),
])  # fmt: skip
def test_what_cannot_be_measured(capsys, options, words):
    assert main(["iobench", __file__, *options]) == 1
    assert words in capsys.readouterr().err


def test_neither_a_folder_nor_a_device(tmp_path, capsys):
    for path in (str(tmp_path), "/dev/zero"):
        assert main(["iobench", path]) == 1
        assert f"{path}: found a folder, pipe or device, expected a file" in capsys.readouterr().err
