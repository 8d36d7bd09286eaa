"""Short memory on purpose: a memory cgroup, a cold page cache, a chosen read-ahead.

    python -m bench.memory --limit 900M [--cold FILE] [--read-ahead 128] -- COMMAND…

runs the command so and says its peak memory. Needs root. `bench.pressure` uses the parts for a table.
"""

import argparse
import ctypes
import mmap
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

MOUNT = Path("/sys/fs/cgroup")
PAGE = mmap.PAGESIZE


class MemoryCgroup:
    """A cgroup of our own with a memory limit (v1 or v2); a context manager that removes it.

    Page cache counts towards the limit, but only pages that the group itself brought in: call
    `drop_cache` on the model file before.
    """

    def __init__(self, limit_bytes: int):
        """Raises OSError where cgroups are absent or not writable."""
        self.is_v1 = (MOUNT / "memory" / "memory.limit_in_bytes").exists()
        self.path = _own_cgroup(self.is_v1) / f"moebench-{os.getpid()}-{time.monotonic_ns()}"
        self.path.mkdir()
        try:
            self._write("memory.limit_in_bytes" if self.is_v1 else "memory.max", limit_bytes)
            if not self.is_v1:
                self._write("memory.swap.max", 0)
        except OSError:
            self.path.rmdir()
            raise

    def enter(self) -> None:
        """Move the calling process in; made for `preexec_fn`."""
        self._write("cgroup.procs", os.getpid())

    def peak_bytes(self) -> int:
        """Highest use so far, page cache included."""
        return self._read("memory.max_usage_in_bytes" if self.is_v1 else "memory.peak")

    def use_bytes(self) -> int:
        """Use now, page cache included."""
        return self._read("memory.usage_in_bytes" if self.is_v1 else "memory.current")

    def anonymous_bytes(self) -> int:
        """Memory now that cannot be given back: heap, KV cache, copies of weights."""
        return self._stat()["total_rss" if self.is_v1 else "anon"]

    def limit_hits(self) -> int:
        """How often the limit forced a reclaim."""
        if self.is_v1:
            return self._read("memory.failcnt")
        return self._pairs("memory.events")["max"]

    def remove(self) -> None:
        """Give the page cache back and delete the group; every process must have left it."""
        for _ in range(50):
            try:
                if self.is_v1:
                    self._write("memory.force_empty", 0)
                return self.path.rmdir()
            except OSError:
                time.sleep(0.1)
        self.path.rmdir()

    def _stat(self):
        return self._pairs("memory.stat")

    def _pairs(self, name):
        lines = (self.path / name).read_text().split("\n")
        return {key: int(value) for key, value in (line.split() for line in lines if line)}

    def _read(self, name) -> int:
        return int((self.path / name).read_text())

    def _write(self, name, value):
        (self.path / name).write_text(str(value))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.remove()


def _own_cgroup(is_v1: bool) -> Path:
    """Directory of the cgroup this process is in."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if ("memory" in controllers.split(",")) if is_v1 else not controllers:
            return (MOUNT / "memory" if is_v1 else MOUNT) / path.lstrip("/")
    raise FileNotFoundError("/proc/self/cgroup names no memory cgroup")


@contextmanager
def read_ahead(path: str, kb: int | None):
    """Set `read_ahead_kb` of the disk that holds `path`, and put it back; None leaves it alone.

    It acts on files opened afterwards.
    """
    if kb is None:
        yield
        return
    knob = read_ahead_knob(path)
    before = knob.read_text()
    knob.write_text(str(kb))
    try:
        yield
    finally:
        knob.write_text(before)


def read_ahead_knob(path: str) -> Path:
    """The sysfs file of the disk under `path`, also when it is a partition."""
    device = os.stat(path).st_dev
    sysfs = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve()
    disk = sysfs if (sysfs / "queue").exists() else sysfs.parent
    return disk / "queue" / "read_ahead_kb"


def drop_cache(path: str) -> float:
    """Push the file out of the page cache and return the share that is still there (0..1).

    Pages that another process maps stay; if many do, the whole machine's cache is dropped, which
    lets go of what is mapped but not in use. Raises RuntimeError if more than 2 % remain.
    """
    os.sync()
    with open(path, "rb") as f:
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    left = resident_share(path)
    if left > 0.02:
        Path("/proc/sys/vm/drop_caches").write_text("1")
        left = resident_share(path)
    if left > 0.02:
        raise RuntimeError(f"{path}: {100 * left:.0f} % stays in the page cache; who has it mapped?")
    return left


def resident_share(path: str) -> float:
    """Share of the file's pages that are in the page cache (0..1), by mincore."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
    with open(path, "rb") as f:
        size = os.fstat(f.fileno()).st_size
        address = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, f.fileno(), 0)
    pages = (size + PAGE - 1) // PAGE
    present = (ctypes.c_ubyte * pages)()
    failed = libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), present)
    libc.munmap(ctypes.c_void_p(address), ctypes.c_size_t(size))
    if failed:
        raise OSError(ctypes.get_errno(), "mincore", path)
    return sum(bytes(present).translate(_LOW_BIT)) / pages


_LOW_BIT = bytes(i & 1 for i in range(256))


def parse_size(text: str) -> int:
    """Bytes of `900M`, `4G`, `1.5G` or a plain number; decimal units, as in the tables."""
    factor = {"K": 1e3, "M": 1e6, "G": 1e9}.get(text[-1].upper())
    return int(float(text[:-1]) * factor) if factor else int(text)


def main(argv=None) -> int:
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--limit", required=True, type=parse_size, help="such as 900M or 4G")
    p.add_argument("--cold", metavar="FILE", action="append", default=[], help="drop from page cache")
    p.add_argument("--read-ahead", type=int, metavar="KB", help="of the disk under the first FILE")
    p.add_argument("command", nargs=argparse.REMAINDER)
    a = p.parse_args(argv)
    command = a.command[1:] if a.command[:1] == ["--"] else a.command
    if not command:
        p.error("no command")
    if a.read_ahead is not None and not a.cold:
        p.error("--read-ahead needs --cold FILE to know the disk")
    for path in a.cold:
        drop_cache(path)
    with MemoryCgroup(a.limit) as group, read_ahead(a.cold[0] if a.cold else "", a.read_ahead):
        start = time.perf_counter()
        status = subprocess.run(command, preexec_fn=group.enter).returncode
        print(
            f"status {status}, {time.perf_counter() - start:.1f} s, peak "
            f"{group.peak_bytes() / 1e6:.0f} MB of {a.limit / 1e6:.0f}, limit hit "
            f"{group.limit_hits()} times",
            file=sys.stderr,
        )
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main())
