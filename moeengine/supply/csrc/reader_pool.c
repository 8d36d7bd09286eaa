/* Blocking positioned reads by a few threads: measured as fast as asynchronous submission here, and
 * simpler. Waiting for a slice spins briefly, then sleeps on the slice's own state word. */
#define _GNU_SOURCE
#include "reader_pool.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { SPIN_ROUNDS = 100, SCRATCH_BYTES = 1 << 20 };

typedef struct {
    moe_slice *first, *last;
} queue;

typedef struct {
    moe_readers *pool;
    int *fd;            /* (n_files) */
    moe_slice *current; /* being read; under the pool's lock */
    char *scratch;      /* SCRATCH_BYTES, where bytes are read only for what that leaves in the page cache */
    pthread_t thread;
} reader;

struct moe_readers {
    int n_files, n_readers, n_running, kind, stop;
    pid_t pid; /* process the threads run in; 0 = not started */
    pthread_mutex_t lock;
    pthread_cond_t work;
    queue urgent, later;
    reader *readers;
    int *fd; /* (n_readers * n_files) */
    atomic_int_fast64_t wait_ns, n_waits, read_ns, read_bytes, n_reads, n_failed;
};

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void add(atomic_int_fast64_t *counter, int64_t n) {
    atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

static void push(queue *q, moe_slice *slice) {
    slice->next = NULL;
    if (q->last) q->last->next = slice;
    else q->first = slice;
    q->last = slice;
}

static moe_slice *pop(queue *q) {
    moe_slice *slice = q->first;
    if (slice && !(q->first = slice->next)) q->last = NULL;
    return slice;
}

static int take_out(queue *q, moe_slice *slice) {
    moe_slice *before = NULL;
    for (moe_slice *s = q->first; s; before = s, s = s->next) {
        if (s != slice) continue;
        if (before) before->next = s->next;
        else q->first = s->next;
        if (q->last == s) q->last = before;
        return 1;
    }
    return 0;
}

static void settle(moe_slice *slice, unsigned state) {
    atomic_store_explicit(&slice->state, state, memory_order_release);
    syscall(SYS_futex, &slice->state, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* Bytes that arrived, or -1 with errno. An interrupted or partial read goes on. */
static int64_t read_fully(int fd, char *to, int64_t offset, int64_t length, int64_t need) {
    int64_t done = 0;
    while (done < need) {
        ssize_t n = pread(fd, to + done, (size_t)(length - done), offset + done);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return -1;
        if (n == 0) break;
        done += n;
    }
    return done;
}

/* Bytes that passed through the scratch, or -1 with errno. */
static int64_t read_through(int fd, char *scratch, int64_t offset, int64_t n) {
    int64_t done = 0;
    while (done < n) {
        int64_t part = n - done < SCRATCH_BYTES ? n - done : SCRATCH_BYTES;
        int64_t got = read_fully(fd, scratch, offset + done, part, part);
        if (got < 0) return -1;
        done += got;
        if (got < part) break;
    }
    return done;
}

static int64_t fetch(int kind, int fd, char *scratch, moe_slice *slice) {
    int64_t n = slice->need - slice->skip, got;
    if (n == 0) return slice->need; /* to posix_fadvise it would mean all that follows */
    switch (kind) {
    case MOE_READ_DIRECT:
        return read_fully(fd, slice->to, slice->offset, slice->length, slice->need);
    case MOE_READ_BUFFERED:
        got = read_fully(fd, slice->to + slice->skip, slice->offset + slice->skip, n, n);
        posix_fadvise(fd, slice->offset, slice->length, POSIX_FADV_DONTNEED);
        break;
    case MOE_WARM_READ:
        got = read_through(fd, scratch, slice->offset + slice->skip, n);
        break;
    default: /* MOE_WARM_ADVICE */
        errno = posix_fadvise(fd, slice->offset + slice->skip, n, POSIX_FADV_WILLNEED);
        return errno ? -1 : slice->need;
    }
    return got < 0 ? got : got + slice->skip;
}

static void read_slice(moe_readers *pool, const reader *me, moe_slice *slice) {
    int64_t start = now_ns();
    int64_t got = fetch(pool->kind, me->fd[slice->file], me->scratch, slice);
    add(&pool->read_ns, now_ns() - start);
    add(&pool->n_reads, 1);
    if (got >= slice->need) {
        add(&pool->read_bytes, got);
        settle(slice, MOE_SLICE_READY);
    } else {
        slice->err = got < 0 ? errno : 0;
        add(&pool->n_failed, 1);
        settle(slice, MOE_SLICE_FAILED);
    }
}

static void *reader_main(void *p) {
    reader *me = p;
    moe_readers *pool = me->pool;
    pthread_mutex_lock(&pool->lock);
    for (;;) {
        moe_slice *slice = NULL;
        while (!pool->stop && !(slice = pop(&pool->urgent)) && !(slice = pop(&pool->later)))
            pthread_cond_wait(&pool->work, &pool->lock);
        if (!slice) break;
        me->current = slice;
        atomic_store_explicit(&slice->state, MOE_SLICE_READING, memory_order_relaxed);
        pthread_mutex_unlock(&pool->lock);
        read_slice(pool, me, slice);
        pthread_mutex_lock(&pool->lock);
        me->current = NULL;
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

static void start(moe_readers *pool) {
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->work, NULL);
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    pool->n_running = 0;
    for (int i = 0; i < pool->n_readers; i++) { /* a forked child goes on with what was being read */
        reader *r = &pool->readers[i];
        if (pool->pid && r->current) push(&pool->urgent, r->current);
        r->current = NULL;
    }
    for (int i = 0; i < pool->n_readers; i++) {
        reader *r = &pool->readers[i];
        if (pthread_create(&r->thread, NULL, reader_main, r) != 0) break;
        pool->n_running++;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pool->pid = getpid();
}

static int open_flags(int kind) {
    return O_RDONLY | O_CLOEXEC | (kind == MOE_READ_DIRECT ? O_DIRECT : 0);
}

moe_readers *moe_readers_new(int n_files, const char *const *paths, int n_readers, int kind, int *bad_file) {
    moe_readers *pool = calloc(1, sizeof *pool);
    *bad_file = -1;
    if (!pool) return NULL;
    pool->n_files = n_files;
    pool->n_readers = n_readers;
    pool->kind = kind;
    pool->readers = calloc((size_t)n_readers, sizeof *pool->readers);
    pool->fd = malloc((size_t)n_readers * (size_t)n_files * sizeof *pool->fd);
    if (!pool->readers || !pool->fd) goto fail;
    for (int i = 0; i < n_readers * n_files; i++) pool->fd[i] = -1;
    for (int i = 0; i < n_readers; i++) {
        pool->readers[i].pool = pool;
        pool->readers[i].fd = pool->fd + i * n_files;
        if (kind == MOE_WARM_READ && !(pool->readers[i].scratch = malloc(SCRATCH_BYTES))) goto fail;
        for (int f = 0; f < n_files; f++) {
            int fd = open(paths[f], open_flags(kind));
            pool->readers[i].fd[f] = fd;
            if (fd < 0) {
                *bad_file = f;
                goto fail;
            }
        }
    }
    return pool;
fail:;
    int err = errno;
    moe_readers_free(pool);
    errno = err;
    return NULL;
}

int moe_readers_reopen(moe_readers *pool, const char *const *paths, int *bad_file) {
    for (int i = 0; i < pool->n_readers * pool->n_files; i++) {
        *bad_file = i % pool->n_files;
        int fd = open(paths[*bad_file], open_flags(pool->kind));
        if (fd < 0) return errno;
        if (dup3(fd, pool->fd[i], O_CLOEXEC) < 0) {
            int err = errno;
            close(fd);
            return err;
        }
        close(fd);
    }
    return 0;
}

void moe_readers_free(moe_readers *pool) {
    if (!pool) return;
    if (pool->pid && pool->pid == getpid()) {
        pthread_mutex_lock(&pool->lock);
        pool->stop = 1;
        pthread_cond_broadcast(&pool->work);
        pthread_mutex_unlock(&pool->lock);
        for (int i = 0; i < pool->n_running; i++) pthread_join(pool->readers[i].thread, NULL);
    }
    for (int i = 0; pool->fd && i < pool->n_readers * pool->n_files; i++)
        if (pool->fd[i] >= 0) close(pool->fd[i]);
    for (int i = 0; pool->readers && i < pool->n_readers; i++) free(pool->readers[i].scratch);
    free(pool->readers);
    free(pool->fd);
    free(pool);
}

void moe_readers_submit(moe_readers *pool, moe_slice *const *slices, int64_t n, int urgent) {
    if (n < 1) return;
    if (pool->pid != getpid()) start(pool);
    if (pool->n_running == 0) { /* the system refuses threads, and nobody would ever read */
        for (int64_t i = 0; i < n; i++) {
            slices[i]->err = EAGAIN;
            settle(slices[i], MOE_SLICE_FAILED);
        }
        pool->pid = 0; /* try again next time */
        return;
    }
    pthread_mutex_lock(&pool->lock);
    for (int64_t i = 0; i < n; i++) {
        atomic_store_explicit(&slices[i]->state, MOE_SLICE_QUEUED, memory_order_relaxed);
        push(urgent ? &pool->urgent : &pool->later, slices[i]);
    }
    if (n == 1) pthread_cond_signal(&pool->work);
    else pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->lock);
}

void moe_readers_hurry(moe_readers *pool, moe_slice *slice) {
    if (moe_slice_get(slice) != MOE_SLICE_QUEUED || pool->pid != getpid()) return;
    pthread_mutex_lock(&pool->lock);
    if (take_out(&pool->later, slice)) push(&pool->urgent, slice);
    pthread_mutex_unlock(&pool->lock);
}

int moe_readers_cancel(moe_readers *pool, moe_slice *slice) {
    if (moe_slice_get(slice) != MOE_SLICE_QUEUED || pool->pid != getpid()) return 0;
    pthread_mutex_lock(&pool->lock);
    int found = take_out(&pool->later, slice) || take_out(&pool->urgent, slice);
    if (found) moe_slice_forget(slice);
    pthread_mutex_unlock(&pool->lock);
    return found;
}

void moe_readers_counts(moe_readers *pool, moe_reader_counts *out) {
    out->wait_ns = atomic_load(&pool->wait_ns);
    out->n_waits = atomic_load(&pool->n_waits);
    out->read_ns = atomic_load(&pool->read_ns);
    out->read_bytes = atomic_load(&pool->read_bytes);
    out->n_reads = atomic_load(&pool->n_reads);
    out->n_failed = atomic_load(&pool->n_failed);
}

const char *moe_slice_wait(moe_readers *pool, moe_slice *slice) {
    unsigned state = moe_slice_get(slice);
    if (state != MOE_SLICE_READY && state != MOE_SLICE_FAILED) {
        int64_t start = now_ns();
        for (int i = 0; i < SPIN_ROUNDS && state < MOE_SLICE_READY; i++) {
#if defined(__x86_64__)
            __builtin_ia32_pause();
#endif
            state = moe_slice_get(slice);
        }
        while (state < MOE_SLICE_READY) {
            syscall(SYS_futex, &slice->state, FUTEX_WAIT_PRIVATE, state, NULL, NULL, 0);
            state = moe_slice_get(slice);
        }
        int64_t waited = now_ns() - start;
        add(&pool->wait_ns, waited);
        add(&pool->n_waits, 1);
        add(&slice->wait_ns, waited);
    }
    return state == MOE_SLICE_READY ? slice->to + slice->skip : NULL;
}

int64_t moe_direct_alignment(const char *path) {
    static const int64_t sizes[] = {512, 4096, 16384, 65536};
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_DIRECT);
    if (fd < 0) return 0;
    char *buffer = NULL;
    int64_t found = 0;
    if (posix_memalign((void **)&buffer, 1 << 17, 1 << 17) == 0) {
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes && !found; i++) /* aligned to no more than the size */
            if (pread(fd, buffer + sizes[i], (size_t)sizes[i], sizes[i]) >= 0) found = sizes[i];
    }
    free(buffer);
    close(fd);
    return found;
}
