"""A file mapped read-only and shared: its bytes, advice about them, and which are resident.

A file that loses bytes while it is mapped reads as zeros from there on, and `take_missing` tells; nothing ends
the process. The mapping lives as long as anything refers to the object. A NumPy view made through the buffer protocol
does, so a view can outlive `close` and never points at unmapped memory.
"""

from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_FillInfo
from libc.errno cimport errno
from libc.stdint cimport int64_t, uintptr_t
from libc.stdlib cimport free, malloc
from posix.mman cimport (
    MADV_DONTNEED, MADV_NORMAL, MADV_RANDOM, MADV_SEQUENTIAL, MADV_WILLNEED,
    MAP_FAILED, MAP_SHARED, PROT_READ, madvise, mincore, mmap, munmap,
)
from posix.unistd cimport _SC_PAGESIZE, sysconf

import os

from moeengine.errors import ClosedError, SupplyError
from moeengine.loader.messages import shown_path
from moeengine.loader.open_file import absolute, open_regular
from moeengine.machine import address_space_limit

cdef extern from "bus_guard.h":
    int moe_guard_add(void *base, size_t n)
    void moe_guard_remove(int i)
    int64_t moe_guard_take(int i)
    int moe_guard_heal(int i, int fd, int64_t offset)

cdef extern from *:
    """
    #ifndef MADV_HUGEPAGE
    #define MADV_HUGEPAGE 14
    #endif
    #ifndef MADV_POPULATE_READ   /* since Linux 5.14; before, the headers may lack it */
    #define MADV_POPULATE_READ 22
    #endif
    """
    enum:
        MADV_HUGEPAGE
        MADV_POPULATE_READ

cdef dict ADVICE = {
    "normal": MADV_NORMAL,
    "hugepage": MADV_HUGEPAGE,
    "random": MADV_RANDOM,
    "sequential": MADV_SEQUENTIAL,
    "willneed": MADV_WILLNEED,
    "dontneed": MADV_DONTNEED,
}
cdef size_t PAGE = sysconf(_SC_PAGESIZE)
cdef size_t RESIDENCY_PAGES = 1 << 16  # pages asked about in one call of mincore

page_size = int(PAGE)


cdef class MappedFile:
    """One file, open for reading and mapped whole.

    Attributes
    ----------
    path : Path         absolute
    fd : int            descriptor; -1 after close
    size : int          bytes
    address : int       of the first byte; 0 for an empty file
    n_views : int       buffers handed out that still exist
    n_advice, n_advice_failed : int   calls of `advise` that reached the system, and how many it refused
    bytes_advised : int   bytes of the calls that it took
    last_advice_errno : int   of the latest refusal, 0 if none

    Raises
    ------
    GGUFError     the file cannot be opened
    SupplyError   the system refuses the mapping
    """

    cdef char *_base
    cdef readonly object path
    cdef readonly int fd
    cdef readonly size_t size
    cdef readonly Py_ssize_t n_views
    cdef readonly Py_ssize_t n_advice
    cdef readonly Py_ssize_t n_advice_failed
    cdef readonly object bytes_advised
    cdef readonly int last_advice_errno
    cdef int _guard      # index of the watch over the mapping; -1: none

    def __cinit__(self, path):
        cdef void *base
        self._base = NULL
        self._guard = -1
        self.fd = -1
        self.bytes_advised = 0
        self.path = absolute(path)
        self.fd, self.size = open_regular(self.path)
        if self.size:
            base = mmap(NULL, self.size, PROT_READ, MAP_SHARED, self.fd, 0)
            if base == MAP_FAILED:
                reason, limit = os.strerror(errno), address_space_limit()
                raise SupplyError(
                    f"{shown_path(self.path)}: cannot map {self.size / 1e6:.0f} MB: {reason}"
                    + (f"; {limit}" if limit else "")
                )
            self._base = <char *> base
            self._guard = moe_guard_add(base, self.size)

    def __dealloc__(self):
        self._unmap()
        self._close_fd()

    cdef void _unmap(self) noexcept:
        moe_guard_remove(self._guard)
        self._guard = -1
        if self._base != NULL:
            munmap(self._base, self.size)
        self._base = NULL

    cdef int _close_fd(self) except -1:
        cdef int fd = self.fd
        self.fd = -1
        if fd >= 0:
            os.close(fd)
        return 0

    @property
    def address(self):
        return <uintptr_t> self._base

    @property
    def closed(self):
        """True after `close`, also while the mapping still lives."""
        return self.fd < 0

    def close(self):
        """Close the descriptor; the mapping goes with the last reference. Twice is fine."""
        self._close_fd()

    def unmap(self):
        """Unmap now, for a caller that knows no address into the mapping is in use.

        Returns
        -------
        int   0 when unmapped; otherwise the number of views that still exist, and nothing is done
        """
        if self.n_views == 0:
            self._unmap()
        return self.n_views

    def take_missing(self):
        """Whether bytes of the mapping could not be had since the last call, and zeros were read instead.

        The mapping shows the file again afterwards.

        Returns
        -------
        int   offset of the first page that was missing; -1: none was

        Raises
        ------
        SupplyError   the system refuses to map the file anew
        """
        cdef int64_t offset = moe_guard_take(self._guard)
        cdef int code
        if offset >= 0 and self.fd >= 0:
            code = moe_guard_heal(self._guard, self.fd, offset)
            if code:
                raise SupplyError(f"{shown_path(self.path)}: cannot map it anew: {os.strerror(code)}")
        return offset

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        if self._base == NULL and self.size:
            raise ClosedError(f"{shown_path(self.path)}: the mapping was released")
        if flags & PyBUF_WRITABLE:
            raise BufferError("the mapping is read-only")
        cdef void *first = self._base if self.size else <void *> b""
        PyBuffer_FillInfo(buffer, self, first, self.size, True, flags)
        self.n_views += 1

    def __releasebuffer__(self, Py_buffer *buffer):
        self.n_views -= 1

    def __len__(self):
        return self.size

    def advise(self, size_t offset, size_t length, str advice):
        """Tell the kernel what will be done with a range of bytes.

        Parameters
        ----------
        offset, length : int    bytes; inside the file
        advice : {"normal", "random", "sequential", "willneed", "dontneed", "hugepage"}
            "dontneed" is rounded inward to whole pages, so bytes of a neighbour are never dropped;
            the others are rounded outward

        Returns
        -------
        int   bytes advised after rounding; 0 when no whole page is left, or when refused (counted)
        """
        if advice not in ADVICE:
            raise ValueError(f"advice: found {advice!r}, expected one of {', '.join(ADVICE)}")
        cdef int kind = ADVICE[advice], rc
        cdef size_t first, last
        self._check_range(offset, length)
        if kind == MADV_DONTNEED:
            first = (offset + PAGE - 1) // PAGE * PAGE
            last = (offset + length) // PAGE * PAGE
            if offset + length == self.size:  # nothing of another tensor follows on the last page
                last = self.size
        else:
            first = offset // PAGE * PAGE
            last = offset + length
        if length == 0 or last <= first:
            return 0
        with nogil:
            rc = madvise(self._base + first, last - first, kind)
        self.n_advice += 1
        if rc != 0:
            self.last_advice_errno = errno
            self.n_advice_failed += 1
            return 0
        self.bytes_advised += last - first
        return last - first

    def populate(self, size_t offset, size_t length):
        """Read a range into the page cache and map it, without the GIL; nothing is copied.

        Returns
        -------
        bool   False where the system cannot: it is too old, or bytes of the file are gone
        """
        cdef int rc
        cdef size_t first = offset // PAGE * PAGE
        self._check_range(offset, length)
        if length == 0:
            return True
        self.n_views += 1  # the mapping stays meanwhile
        with nogil:
            rc = madvise(self._base + first, offset + length - first, MADV_POPULATE_READ)
        self.n_views -= 1
        return rc == 0

    def resident_pages(self, size_t offset, size_t length):
        """How many pages of a range are in memory.

        Returns
        -------
        (resident, total) : pages; the range is rounded outward. For a file that this user neither owns
            nor may write, Linux reports every page as resident.

        Raises
        ------
        SupplyError   the system does not tell
        """
        self._check_range(offset, length)
        if length == 0:
            return 0, 0
        cdef size_t first = offset // PAGE, last = (offset + length - 1) // PAGE + 1
        cdef size_t page = first, n, i, resident = 0
        cdef int rc = 0
        cdef unsigned char *flags = <unsigned char *> malloc(min(RESIDENCY_PAGES, last - first))
        if flags == NULL:
            raise MemoryError()
        with nogil:
            while page < last and rc == 0:
                n = min(RESIDENCY_PAGES, last - page)
                rc = mincore(self._base + page * PAGE, n * PAGE, flags)
                if rc == 0:
                    for i in range(n):
                        resident += flags[i] & 1
                page += n
        free(flags)
        if rc != 0:
            raise SupplyError(
                f"{shown_path(self.path)}: cannot ask which pages are resident: {os.strerror(errno)}"
            )
        return resident, last - first

    cdef int _check_range(self, size_t offset, size_t length) except -1:
        if self._base == NULL and self.size:
            raise ClosedError(f"{shown_path(self.path)}: the mapping was released")
        if length > self.size or offset > self.size - length:
            raise ValueError(
                f"{shown_path(self.path)}: found {length} bytes at {offset}, expected them in {self.size} of it"
            )
        return 0
