"""The pool of reader threads; see csrc/reader_pool.h for the contract of each call."""
from libc.stdint cimport int32_t, int64_t

cdef extern from "reader_pool.h":
    enum:
        MOE_SLICE_ABSENT
        MOE_SLICE_QUEUED
        MOE_SLICE_READING
        MOE_SLICE_READY
        MOE_SLICE_FAILED
    ctypedef struct moe_slice:
        int32_t file
        int32_t err
        int32_t skip
        int64_t offset
        int64_t length
        int64_t need
        char *to
    ctypedef struct moe_readers
    ctypedef struct moe_reader_counts:
        int64_t wait_ns, n_waits, read_ns, read_bytes, n_reads, n_failed
    unsigned moe_slice_get(moe_slice *slice) noexcept nogil
    void moe_slice_fail(moe_slice *slice, int err) noexcept nogil
    void moe_slice_forget(moe_slice *slice) noexcept nogil
    int64_t moe_slice_take_wait(moe_slice *slice) noexcept nogil

cdef class Readers:
    cdef moe_readers *pool           # NULL after close
    cdef readonly bint is_direct     # past the page cache
    cdef readonly int64_t alignment  # of offsets, lengths and addresses
    cdef readonly int n_readers
    cdef readonly list maps          # keeps the descriptors that names lead through
    cdef readonly int n_reopened

# reader_pool.c is linked into supply.readers only; other modules reach it through these.
cdef void readers_submit(moe_readers *pool, moe_slice **slices, int64_t n, bint urgent) noexcept nogil
cdef void readers_hurry(moe_readers *pool, moe_slice *slice) noexcept nogil
cdef bint readers_cancel(moe_readers *pool, moe_slice *slice) noexcept nogil
cdef void readers_counts(moe_readers *pool, moe_reader_counts *out) noexcept nogil
cdef const char *slice_wait(moe_readers *pool, moe_slice *slice) noexcept nogil
