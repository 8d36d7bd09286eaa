"""`moeengine iobench`: what the drive gives at the size of an expert slice, by several ways of reading."""

import mmap
import os
import random
import stat
import threading
import time

from moeengine.cli import output
from moeengine.config import integer
from moeengine.errors import ConfigError

METHODS = ("direct", "direct, small pages", "buffered", "mapped")
HUGE_BYTES = 2 << 20
BLOCK = 4096
MAX_SLICE_KB, MAX_READERS, MAX_SECONDS = 1 << 20, 256, 3600


def add_arguments(parser):
    parser.add_argument("path", metavar="FILE", help="a large file on the drive in question")
    parser.add_argument(
        "--slice-kb", type=int, default=400, metavar="N", help="bytes of a read / 1024 (default: 400)"
    )
    parser.add_argument(
        "--seconds", type=float, default=0.5, metavar="X", help="for each row (default: 0.5)"
    )
    parser.add_argument(
        "--readers", type=int, nargs="+", default=[1, 2, 4, 8], metavar="N",
        help="threads that read (default: 1 2 4 8)",
    )  # fmt: skip
    parser.add_argument(
        "--json", action="store_true", help="one JSON object a row (default: off)"
    )


def run(args):
    slice_bytes = integer("slice_kb", args.slice_kb, BLOCK // 1024, MAX_SLICE_KB) * 1024 // BLOCK * BLOCK
    readers = [integer("readers", n, 1, MAX_READERS) for n in args.readers]
    if not 0 < args.seconds <= MAX_SECONDS:
        raise ConfigError(f"seconds: found {args.seconds}, expected more than 0 and at most {MAX_SECONDS}")
    status = os.stat(args.path)
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError(f"{args.path}: found a folder, pipe or device, expected a file")
    if (size := status.st_size) < 4 * slice_bytes:
        raise ConfigError(
            f"{args.path}: found {size} bytes, expected at least {4 * slice_bytes}, four slices; --slice-kb makes them smaller"
        )
    for method in METHODS:
        for n_readers in readers:
            row = measure(args.path, size, slice_bytes, method, n_readers, args.seconds)
            if args.json:
                output.json_line(row)
            else:
                output.write(
                    f"{method:20s} {n_readers:2d} readers  {row['gb_s']:6.2f} GB/s"
                    f"  {row['latency_ms']:6.2f} ms a slice\n"
                    if row["gb_s"]
                    else f"{method:20s} not possible on this file system\n"
                )
    return 0


def measure(path, size, slice_bytes, method, n_readers, seconds):
    """Random slices by n_readers threads for some seconds, the file dropped from the page cache before.

    Returns
    -------
    dict    method, n_readers, slice_bytes, gb_s (1e9 bytes a second; 0: not possible), latency_ms
    """
    with open(path, "rb") as f:
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    counts = [0] * n_readers
    end = time.perf_counter() + seconds
    threads = [
        threading.Thread(target=_reader, args=(path, size, slice_bytes, method, end, counts, i))
        for i in range(n_readers)
    ]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    passed = time.perf_counter() - start
    n = sum(counts)
    return {
        "method": method, "n_readers": n_readers, "slice_bytes": slice_bytes,
        "gb_s": n * slice_bytes / passed / 1e9, "latency_ms": 1e3 * passed * n_readers / n if n else 0.0,
    }  # fmt: skip


def _reader(path, size, slice_bytes, method, end, counts, i):
    """Reads at least once and until the clock says `end`; leaves its count in counts[i]."""
    flags = os.O_DIRECT if method.startswith("direct") else 0
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
    except OSError:
        return
    choose = random.Random(i)
    room = mmap.mmap(-1, -(-slice_bytes // HUGE_BYTES) * HUGE_BYTES * 2)
    if method != "direct, small pages":
        room.madvise(mmap.MADV_HUGEPAGE)
    view = memoryview(room)[:slice_bytes]
    mapped = mmap.mmap(fd, 0, access=mmap.ACCESS_READ) if method == "mapped" else None
    try:
        while not counts[i] or time.perf_counter() < end:
            at = choose.randrange(0, (size - slice_bytes) // BLOCK) * BLOCK
            if mapped is not None:
                view[:] = memoryview(mapped)[at : at + slice_bytes]
            elif os.preadv(fd, [view], at) < slice_bytes:
                return
            counts[i] += 1
    except OSError:
        counts[i] = 0
    finally:
        os.close(fd)
