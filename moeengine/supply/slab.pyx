"""Anonymous memory on huge pages: direct reads into it cost a fraction of those into small pages."""

from cpython.buffer cimport PyBuffer_FillInfo
from libc.stdint cimport int64_t, uintptr_t

from moeengine.errors import SupplyError

cdef extern from "<sys/mman.h>" nogil:
    void *mmap(void *addr, size_t length, int prot, int flags, int fd, long offset)
    int munmap(void *addr, size_t length)
    int madvise(void *addr, size_t length, int advice)
    int PROT_READ, PROT_WRITE, MAP_PRIVATE, MAP_ANONYMOUS, MAP_NORESERVE, MADV_HUGEPAGE
    void *MAP_FAILED

cdef enum:
    HUGE = 2097152


cdef class Slab:
    """n_bytes of zeroed memory, aligned to 2 MB. A page is there from its first use on.

    in_advance : bool    a thread brings the pages in, from the first to the last, while the caller goes on: clearing a
                         large expert cache takes seconds

    The caller knows that so much memory is there: touching more than a memory limit allows ends the process.

    Raises
    ------
    SupplyError    the system refuses the address space
    """

    def __cinit__(self, int64_t n_bytes, bint in_advance=False):
        cdef size_t n = (max(1, n_bytes) + HUGE - 1) // HUGE * HUGE
        self.base = NULL
        self.reserved = NULL
        self.reserved_bytes = n + HUGE
        cdef void *at = mmap(NULL, self.reserved_bytes, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
        if at == MAP_FAILED:
            raise SupplyError(f"the system refuses {n / 1e6:.0f} MB for expert weights")
        self.reserved = at
        self.base = <char *>((<uintptr_t>at + HUGE - 1) & ~<uintptr_t>(HUGE - 1))
        self.n_bytes = n
        madvise(self.base, n, MADV_HUGEPAGE)
        if in_advance:
            moe_page_maker_start(&self.pages, self.base, n)

    def huge_bytes(self):
        """Bytes of the slab that lie on huge pages, by the process's own map."""
        found, inside = 0, False
        with open("/proc/self/smaps") as maps:
            for line in maps:
                if not line[0].isupper():
                    inside = self._overlaps(line.split(" ", 1)[0])
                elif inside and line.startswith("AnonHugePages:"):
                    found += int(line.split()[1]) * 1024
        return min(found, self.n_bytes)

    def _overlaps(self, span):
        first, last = (int(x, 16) for x in span.split("-"))
        begin = <uintptr_t>self.base
        return first < begin + self.n_bytes and begin < last

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.base, self.n_bytes, False, flags)

    def close(self):
        """Give the memory back; nothing may point into it. Again: nothing."""
        moe_page_maker_stop(&self.pages)
        if self.reserved != NULL:
            munmap(self.reserved, self.reserved_bytes)
        self.reserved = NULL
        self.base = NULL

    def __dealloc__(self):
        self.close()
