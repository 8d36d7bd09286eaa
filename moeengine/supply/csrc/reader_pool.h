/* Threads that read slices of files into memory of the caller, past the page cache where the file
 * system allows it. One pool serves one model; a slice belongs to the caller, who may touch it only
 * while it is neither queued nor being read. */
#ifndef MOE_READER_POOL_H
#define MOE_READER_POOL_H
#include <stdatomic.h>
#include <stdint.h>

enum moe_slice_state {
    MOE_SLICE_ABSENT = 0,
    MOE_SLICE_QUEUED = 1,
    MOE_SLICE_READING = 2,
    MOE_SLICE_READY = 3,  /* the bytes are at to + skip */
    MOE_SLICE_FAILED = 4, /* err says why */
};

typedef struct moe_slice {
    atomic_uint state; /* enum moe_slice_state */
    int32_t file;      /* index into the pool's files */
    int32_t err;       /* errno, or 0: the file ends too early */
    int32_t skip;      /* bytes before the slice's first byte in what is read */
    int64_t offset;    /* in the file, aligned */
    int64_t length;    /* bytes asked for, aligned; may reach past the end of the file */
    int64_t need;      /* bytes that must arrive: skip + bytes of the slice */
    char *to;          /* aligned, room for `length` bytes */
    struct moe_slice *next;
    atomic_int_fast64_t wait_ns; /* summed over those who waited for it; the caller may reset it */
} moe_slice;

typedef struct moe_readers moe_readers;

/* What the readers and waiters have done since the pool was made; nanoseconds, bytes. */
typedef struct {
    int64_t wait_ns;    /* sum over the threads that waited in moe_slice_wait */
    int64_t n_waits;
    int64_t read_ns;    /* sum over the readers */
    int64_t read_bytes;
    int64_t n_reads;
    int64_t n_failed;
} moe_reader_counts;

/* Smallest of 512, 4096, 16384, 65536 with which a read past the page cache works for `path`, or 0 where none does. */
int64_t moe_direct_alignment(const char *path);

/* What the threads do with a slice. */
enum moe_reader_kind {
    MOE_READ_BUFFERED = 0, /* read it through the page cache, and drop from it what was read */
    MOE_READ_DIRECT = 1,   /* read it past the page cache */
    MOE_WARM_READ = 2,     /* read it into scratch, for what that leaves in the page cache */
    MOE_WARM_ADVICE = 3,   /* ask the system to read it into the page cache */
};

/* n_readers threads, each with a descriptor of its own for every file; they start at the first
 * request, anew in a forked child.
 * NULL with errno set; *bad_file is then the file that could not be opened, or -1. */
moe_readers *moe_readers_new(int n_files, const char *const *paths, int n_readers, int kind, int *bad_file);
void moe_readers_free(moe_readers *pool); /* reads under way end first; queued ones are dropped */

/* Queue n slices in this order, before (urgent) or after the ones queued as not urgent. */
void moe_readers_submit(moe_readers *pool, moe_slice *const *slices, int64_t n, int urgent);
/* A queued, not urgent slice is wanted now. No effect on others. */
void moe_readers_hurry(moe_readers *pool, moe_slice *slice);
/* Take a slice out of the queue: 1 and ABSENT, or 0 where it is being read or was never queued. */
int moe_readers_cancel(moe_readers *pool, moe_slice *slice);
/* Open every file anew, under the descriptors that the readers use. 0, or errno and *bad_file. */
int moe_readers_reopen(moe_readers *pool, const char *const *paths, int *bad_file);
void moe_readers_counts(moe_readers *pool, moe_reader_counts *out);

/* First byte of the slice as soon as it is ready; NULL where reading failed. */
const char *moe_slice_wait(moe_readers *pool, moe_slice *slice);

static inline unsigned moe_slice_get(moe_slice *slice) {
    return atomic_load_explicit(&slice->state, memory_order_acquire);
}
/* For a slice that nobody reads. */
static inline void moe_slice_fail(moe_slice *slice, int err) {
    slice->err = err;
    atomic_store_explicit(&slice->state, MOE_SLICE_FAILED, memory_order_release);
}
static inline int64_t moe_slice_take_wait(moe_slice *slice) {
    return atomic_exchange_explicit(&slice->wait_ns, 0, memory_order_relaxed);
}
static inline void moe_slice_forget(moe_slice *slice) {
    atomic_store_explicit(&slice->state, MOE_SLICE_ABSENT, memory_order_relaxed);
}
#endif
