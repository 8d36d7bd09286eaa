"""Anonymous memory, of contexts and of expert caches: costs nothing until it is touched."""

from libc.stdint cimport uintptr_t

cdef extern from "<sys/mman.h>" nogil:
    void *mmap(void *addr, size_t length, int prot, int flags, int fd, long offset)
    int munmap(void *addr, size_t length)
    int madvise(void *addr, size_t length, int advice)
    int PROT_READ, PROT_WRITE, MAP_PRIVATE, MAP_ANONYMOUS, MAP_NORESERVE, MADV_HUGEPAGE
    void *MAP_FAILED


cdef enum:
    HUGE = 2097152


cdef class Region:
    """n_bytes, 1 or more, of zeroed memory from a multiple of 2 MB on; on huge pages where the system has them. Lines of its own in
    /proc/self/smaps: the address space beside it is not advised, so no region is joined to another.

    what : str     for the error

    Raises
    ------
    MemoryError    the system refuses the address space
    """

    def __cinit__(self, size_t n_bytes, str what):
        self.reserved_bytes = n_bytes + HUGE
        cdef void *at = mmap(NULL, self.reserved_bytes, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
        if at == MAP_FAILED:
            raise MemoryError(f"the system refuses {n_bytes / 1e6:.0f} MB for {what}")
        self.reserved, self.n_bytes = at, n_bytes
        self.base = <uint8_t *>((<uintptr_t>at + HUGE - 1) & ~<uintptr_t>(HUGE - 1))
        madvise(self.base, n_bytes, MADV_HUGEPAGE)

    def __dealloc__(self):
        if self.reserved != NULL:
            munmap(self.reserved, self.reserved_bytes)


cdef Region scratch_of(Team team, size_t n_bytes):
    """The region that all passes of a team use one after another, which outlives the contexts: the pages of a new one
    would be cleared while a prompt waits. A larger one is made where n_bytes do not fit."""
    cdef Region region = team.scratch
    if region is None or region.n_bytes < n_bytes:
        region = team.scratch = Region(n_bytes, "the context")
    return region
