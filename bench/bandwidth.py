"""Measured memory read bandwidth: the ceiling that decode kernels are shown beside.

    python -m bench.bandwidth [--threads 2]
"""

import argparse
import ctypes
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from statistics import median

import numpy as np

SOURCE = Path(__file__).with_name("bandwidth.c")


def buffer_bytes() -> int:
    """A size that no cache holds: four times the last-level cache, 128 MB to 1 GB."""
    size = 0
    for cache in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        size = max(size, int(cache.read_text().rstrip("K\n")) << 10)
    return min(1 << 30, max(128 << 20, 4 * size))


@lru_cache(None)
def read_bandwidth(n_threads: int, rounds: int = 9) -> tuple[float, float]:
    """Median and best GB/s of `n_threads` threads that read one buffer together.

    Raises
    ------
    OSError, subprocess.CalledProcessError     no C compiler
    """
    read_all = _probe()
    data = np.ones(buffer_bytes(), np.uint8)
    share = data.size // n_threads // 128 * 128
    results = []
    with ThreadPoolExecutor(n_threads) as pool:
        for _ in range(rounds):
            start = time.perf_counter()
            list(pool.map(lambda i: read_all(data.ctypes.data + i * share, share), range(n_threads)))
            results.append(share * n_threads / (time.perf_counter() - start) / 1e9)
    return median(results), max(results)


@lru_cache(None)
def _probe():
    """The compiled reader; it runs without the GIL, as every ctypes function does."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "bandwidth.so"
        compiler = ["cc", "-O2", "-march=native", "-Wno-psabi", "-shared", "-fPIC"]
        subprocess.run([*compiler, "-o", library, SOURCE], check=True)
        read_all = ctypes.CDLL(str(library)).read_all
    read_all.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    read_all.restype = ctypes.c_ulonglong
    return read_all


def main(argv=None) -> int:
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--threads", type=int, nargs="*", default=[1, 2], help="default 1 2")
    for n in p.parse_args(argv).threads:
        print("{} threads: median {:.1f} GB/s, best {:.1f}".format(n, *read_bandwidth(n)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
