"""The mapping: read-only, advice on whole pages only, residency, and life time."""

import ctypes
import os
import resource
import subprocess
import sys

import numpy as np
import pytest

from moeengine.errors import ClosedError, GGUFError, SupplyError
from moeengine.loader.mapped_file import MappedFile, page_size
from tests.loader.conditions import without_sanitizer

N_PAGES = 16


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "data.bin"
    path.write_bytes(np.random.default_rng(1).bytes(N_PAGES * page_size + 100))
    return path


@pytest.fixture
def mapped(path):
    return MappedFile(path)


def test_bytes_and_address(mapped, path):
    view = np.frombuffer(mapped, np.uint8)
    assert view.tobytes() == path.read_bytes() and mapped.size == len(mapped) == len(view)
    assert view.ctypes.data == mapped.address and mapped.address % page_size == 0
    assert not view.flags.writeable and mapped.path == path
    assert os.fstat(mapped.fd).st_ino == path.stat().st_ino and not os.get_inheritable(mapped.fd)
    with pytest.raises((BufferError, TypeError)):
        memoryview(mapped).cast("B")[0] = 1


def test_views_keep_the_mapping(mapped, path):  # B124
    expected = path.read_bytes()
    view = np.frombuffer(mapped, np.uint8, 50, 7)
    assert mapped.n_views == 1
    mapped.close()
    mapped.close()
    assert mapped.closed and mapped.fd == -1
    assert view.tobytes() == expected[7:57]
    del mapped
    assert view.tobytes() == expected[7:57]


def test_unmap_only_when_no_view_is_left(mapped):
    view = np.frombuffer(mapped, np.uint8)
    assert mapped.unmap() == 1 and view[0] >= 0
    del view
    assert mapped.unmap() == 0 and mapped.address == 0
    for use in (
        lambda: memoryview(mapped),
        lambda: mapped.advise(0, 1, "normal"),
        lambda: mapped.resident_pages(0, 1),
    ):
        with pytest.raises(ClosedError):
            use()


def test_advice_is_rounded_to_pages(mapped):  # B093
    page = page_size
    assert mapped.advise(10, page, "willneed") == page + 10  # from the start of the page
    assert mapped.advise(page + 10, 5, "willneed") == 15
    assert mapped.advise(0, page, "dontneed") == page
    assert mapped.advise(10, page, "dontneed") == 0  # no whole page inside
    assert mapped.advise(10, 2 * page, "dontneed") == page
    assert mapped.advise(page, 3 * page - 1, "dontneed") == 2 * page
    assert (
        mapped.advise(10, mapped.size - 10, "dontneed") == mapped.size - page
    )  # the last, partial page is nobody else's
    assert mapped.advise(5, 0, "willneed") == 0
    assert (
        mapped.advise(0, mapped.size, "random")
        == mapped.advise(0, mapped.size, "normal")
        == mapped.size
    )
    assert mapped.n_advice == 8 and mapped.n_advice_failed == 0 and mapped.last_advice_errno == 0
    assert (
        mapped.bytes_advised
        == page + 10 + 15 + page + page + 2 * page + mapped.size - page + 2 * mapped.size
    )


@without_sanitizer
def test_refused_advice_is_counted(mapped):
    """Locked pages cannot be dropped: the system says so, and the counter shows it."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mlock(ctypes.c_void_p(mapped.address), ctypes.c_size_t(page_size)):
        pytest.skip("locking memory is not allowed here")
    assert mapped.advise(0, 2 * page_size, "dontneed") == 0
    assert mapped.n_advice_failed == 1 and mapped.last_advice_errno != 0
    libc.munlock(ctypes.c_void_p(mapped.address), ctypes.c_size_t(page_size))
    assert mapped.advise(0, 2 * page_size, "dontneed") == 2 * page_size


def test_residency_follows_what_is_touched(mapped, path):
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)
    if mapped.resident_pages(0, mapped.size)[0] != 0:
        pytest.skip("this file system keeps the pages")
    mapped.advise(0, mapped.size, "random")  # no read-ahead
    np.frombuffer(mapped, np.uint8, 1, 5 * page_size)[0] + 0
    assert mapped.resident_pages(5 * page_size + 3, 1) == (1, 1)
    assert mapped.resident_pages(0, mapped.size) == (1, N_PAGES + 1)
    assert mapped.resident_pages(4 * page_size, page_size) == (0, 1)
    assert mapped.resident_pages(5 * page_size - 1, 2) == (1, 2)
    assert mapped.resident_pages(3, 0) == (0, 0)


def test_populate_reads_a_range_and_maps_it(mapped, path):
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)
    if not mapped.populate(5, 2 * page_size):
        pytest.skip("this system cannot populate a mapping")
    assert mapped.resident_pages(0, 3 * page_size) == (3, 3) and mapped.n_views == 0
    assert mapped.populate(0, mapped.size) and mapped.populate(mapped.size, 0)
    assert mapped.resident_pages(0, mapped.size) == (N_PAGES + 1, N_PAGES + 1)
    os.truncate(path, 4 * page_size)
    assert not mapped.populate(0, mapped.size) and mapped.populate(0, 4 * page_size)


def test_ranges_outside_are_refused(mapped):
    size = mapped.size
    for where in ((0, size + 1), (size, 1), (1, 2**64 - 1), (2**64 - 1, 2), (2**63, 2**63)):
        with pytest.raises(ValueError, match="found"):
            mapped.advise(*where, "normal")
        with pytest.raises(ValueError, match="found"):
            mapped.resident_pages(*where)
        with pytest.raises(ValueError, match="found"):
            mapped.populate(*where)
    with pytest.raises(ValueError, match="willneed"):
        mapped.advise(0, 1, "sometime")
    with pytest.raises(OverflowError):
        mapped.advise(-1, 1, "normal")


def test_residency_in_large_steps(tmp_path):
    """A sparse file with more pages than one call asks about."""
    path = tmp_path / "sparse.bin"
    path.touch()
    n_pages = (1 << 16) + 5
    os.truncate(path, n_pages * page_size)
    assert MappedFile(path).resident_pages(0, n_pages * page_size)[1] == n_pages


def test_empty_file(tmp_path):
    (tmp_path / "empty").touch()
    mapped = MappedFile(tmp_path / "empty")
    assert mapped.size == 0 and mapped.address == 0 and bytes(mapped) == b""
    assert mapped.populate(0, 0) and mapped.advise(0, 0, "willneed") == 0 and mapped.resident_pages(0, 0) == (0, 0)


def test_what_cannot_be_opened(tmp_path):
    with pytest.raises(GGUFError, match="no such file"):
        MappedFile(tmp_path / "none")
    with pytest.raises(GGUFError, match="directory"):
        MappedFile(tmp_path)


@without_sanitizer
def test_address_space_limit_is_explained(tmp_path):  # B106
    path = tmp_path / "big.bin"
    path.touch()
    os.truncate(path, 64 << 30)
    code = (
        "import resource, sys; from moeengine.loader.mapped_file import MappedFile\n"
        "resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))\n"
        "MappedFile(sys.argv[1])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, path], capture_output=True, text=True, check=False
    )
    assert (
        SupplyError.__name__ in done.stderr
        and "ulimit -v" in done.stderr
        and "68719 MB" in done.stderr
    )


@without_sanitizer
def test_many_open_and_close_cycles(path):  # B122
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(2000):
        mapped = MappedFile(path)
        memoryview(mapped).release()
        del mapped
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 4096
    with open("/proc/self/maps") as maps:
        assert str(path) not in maps.read()
