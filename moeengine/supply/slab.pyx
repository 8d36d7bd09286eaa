"""Anonymous memory on huge pages: direct reads into it cost a fraction of those into small pages."""

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from libc.stdint cimport int64_t, uintptr_t

from moeengine.kernels.region cimport Region

from moeengine.errors import SupplyError

cdef enum:
    HUGE = 2097152


@cython.no_gc      # the collector would take the region from a slab that others still write into; no cycle leads through it
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
        try:
            self.region = Region(n, "expert weights")
        except MemoryError as error:
            raise SupplyError(str(error)) from None
        self.base = <char *>self.region.base
        self.n_bytes = n
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
        self.region = None
        self.base = NULL

    def __dealloc__(self):
        moe_page_maker_stop(&self.pages)     # before the region goes
