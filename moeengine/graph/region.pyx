"""Memory of contexts: costs nothing until it is touched."""

cdef extern from "<sys/mman.h>" nogil:
    void *mmap(void *addr, size_t length, int prot, int flags, int fd, long offset)
    int munmap(void *addr, size_t length)
    int madvise(void *addr, size_t length, int advice)
    int PROT_READ, PROT_WRITE, MAP_PRIVATE, MAP_ANONYMOUS, MAP_NORESERVE, MADV_HUGEPAGE
    void *MAP_FAILED


cdef class Region:
    """n_bytes, 1 or more, of zeroed memory, on huge pages where the system has them.

    Raises
    ------
    MemoryError    the system refuses the address space
    """

    def __cinit__(self, size_t n_bytes):
        cdef void *at = mmap(NULL, n_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
        if at == MAP_FAILED:
            raise MemoryError(f"the system refuses {n_bytes / 1e6:.0f} MB for the context")
        self.base, self.n_bytes = <uint8_t *>at, n_bytes
        madvise(at, n_bytes, MADV_HUGEPAGE)

    def __dealloc__(self):
        if self.base != NULL:
            munmap(self.base, self.n_bytes)


cdef Region scratch_of(Team team, size_t n_bytes):
    """The region that all passes of a team use one after another, which outlives the contexts: the pages of a new one
    would be cleared while a prompt waits. A larger one is made where n_bytes do not fit."""
    cdef Region region = team.scratch
    if region is None or region.n_bytes < n_bytes:
        region = team.scratch = Region(n_bytes)
    return region
