"""Owns the threads that read expert bytes. They compute nothing and hold no GIL."""
from libc.errno cimport errno
from libc.stdint cimport int64_t
from libc.stdlib cimport free, malloc

import logging
import os

from moeengine.errors import SupplyError

cdef extern from "reader_pool.h":
    int64_t moe_direct_alignment(const char *path) nogil
    moe_readers *moe_readers_new(int n_files, const char *const *paths, int n_readers, int kind,
                                 int *bad_file) nogil
    void moe_readers_free(moe_readers *pool) nogil
    void moe_readers_submit(moe_readers *pool, moe_slice **slices, int64_t n, int urgent) noexcept nogil
    void moe_readers_hurry(moe_readers *pool, moe_slice *slice) noexcept nogil
    int moe_readers_cancel(moe_readers *pool, moe_slice *slice) noexcept nogil
    int moe_readers_reopen(moe_readers *pool, const char *const *paths, int *bad_file) nogil
    void moe_readers_counts(moe_readers *pool, moe_reader_counts *out) noexcept nogil
    enum:
        MOE_READ_BUFFERED
        MOE_READ_DIRECT
        MOE_WARM_READ
        MOE_WARM_ADVICE
    const char *moe_slice_wait(moe_readers *pool, moe_slice *slice) noexcept nogil

logger = logging.getLogger("moeengine")

SMALLEST_ALIGNMENT = 4096   # a page: huge-page buffers are read into without splitting a page


cdef void readers_submit(moe_readers *pool, moe_slice **slices, int64_t n, bint urgent) noexcept nogil:
    moe_readers_submit(pool, slices, n, urgent)


cdef void readers_hurry(moe_readers *pool, moe_slice *slice) noexcept nogil:
    moe_readers_hurry(pool, slice)


cdef bint readers_cancel(moe_readers *pool, moe_slice *slice) noexcept nogil:
    return moe_readers_cancel(pool, slice)


cdef void readers_counts(moe_readers *pool, moe_reader_counts *out) noexcept nogil:
    moe_readers_counts(pool, out)


cdef const char *slice_wait(moe_readers *pool, moe_slice *slice) noexcept nogil:
    return moe_slice_wait(pool, slice)


def direct_alignment(path):
    """Smallest alignment in bytes of reads past the page cache of `path`; 0: the file system has none."""
    cdef bytes name = os.fsencode(path)
    return moe_direct_alignment(name)


def name_of_open(mapped):
    """A path that leads to the file that is mapped, even where its own path now leads to another or to none.

    Raises
    ------
    SupplyError    only the path is left to go by, and it leads elsewhere
    """
    name = f"/proc/self/fd/{mapped.fd}"
    try:
        if os.path.samestat(os.stat(name), os.fstat(mapped.fd)):
            return name
    except OSError:
        pass          # no /proc
    try:
        if os.path.samestat(os.stat(mapped.path), os.fstat(mapped.fd)):
            return mapped.path
    except OSError as error:
        raise SupplyError(f"{mapped.path}: cannot open it for reading: {error.strerror}") from None
    raise SupplyError(f"{mapped.path}: found another file than the one that was opened before; was it replaced?")


cdef class Readers:
    """Threads that read slices of the model's files, each with a descriptor of its own a file.

    Parameters
    ----------
    maps : list of MappedFile     the files, in the order that moe_slice.file counts
    n_readers : int          1 or more
    method : {"direct", "buffered", "warm", "advise"}
        direct: past the page cache where every file allows it, else "buffered" with a warning;
        warm and advise: slices are not read into memory of the caller, only into the page cache

    Raises
    ------
    SupplyError    a file cannot be opened
    """

    def __cinit__(self):
        self.pool = NULL

    def __init__(self, maps, int n_readers, *, str method="direct"):
        paths = [name_of_open(m) for m in maps]
        cdef list names = [os.fsencode(p) for p in paths]
        cdef int n = len(names), bad = -1
        cdef const char **c_names = <const char **>malloc(max(1, n) * sizeof(char *))
        self.maps = list(maps)
        found = [direct_alignment(p) for p in paths] if method == "direct" else [0]
        self.is_direct = all(found)
        self.alignment = max(SMALLEST_ALIGNMENT, *found)
        self.n_readers = n_readers
        if method == "direct" and not self.is_direct:
            logger.warning("%s: its file system has no direct reads; reading through the page cache",
                           maps[found.index(0)].path)
        if c_names == NULL:
            raise MemoryError
        cdef int kind = MOE_READ_DIRECT if self.is_direct else MOE_READ_BUFFERED
        if method == "warm":
            kind = MOE_WARM_READ
        elif method == "advise":
            kind = MOE_WARM_ADVICE
        for i in range(n):
            c_names[i] = names[i]
        self.pool = moe_readers_new(n, c_names, n_readers, kind, &bad)
        code = errno
        free(c_names)
        if self.pool == NULL:
            where = maps[bad].path if bad >= 0 else "readers"
            raise SupplyError(f"{where}: cannot open it for reading: {os.strerror(code)}")

    def counts(self):
        """dict: waits and reads since the start; seconds summed over threads."""
        cdef moe_reader_counts c
        if self.pool == NULL:
            return {}
        moe_readers_counts(self.pool, &c)
        return {"n_waits": c.n_waits, "thread_wait_s": c.wait_ns / 1e9, "n_reads": c.n_reads,
                "reader_s": c.read_ns / 1e9, "bytes_read": c.read_bytes, "n_failed": c.n_failed}

    def reopen(self):
        """Open every file anew under the same descriptors; what is being read goes on.

        Raises
        ------
        SupplyError    a file cannot be opened
        """
        cdef list names = [os.fsencode(name_of_open(m)) for m in self.maps]
        cdef int n = len(names), bad = -1, code
        cdef const char **c_names = <const char **>malloc(max(1, n) * sizeof(char *))
        if c_names == NULL:
            raise MemoryError
        for i in range(n):
            c_names[i] = names[i]
        code = moe_readers_reopen(self.pool, c_names, &bad)
        free(c_names)
        if code:
            raise SupplyError(f"{self.maps[bad].path}: cannot open it for reading: {os.strerror(code)}")
        self.n_reopened += 1

    def close(self):
        """End the threads after the reads under way. Again: nothing."""
        cdef moe_readers *pool = self.pool
        self.pool = NULL
        if pool != NULL:
            with nogil:
                moe_readers_free(pool)

    def __dealloc__(self):
        self.close()
