/* The handler does what is allowed in one: it looks at a table of atomics and makes one system call. */
#define _GNU_SOURCE
#include "bus_guard.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MAX_GUARDS = 1024 };

typedef struct {
    atomic_uintptr_t base; /* 0: free */
    atomic_size_t n;
    atomic_int_fast64_t missing; /* offset of the first page that was replaced, -1: none */
} guard;

static guard guards[MAX_GUARDS];
static atomic_int n_guards; /* entries ever used */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct sigaction before;
static atomic_int passed_on; /* foreign signals: the second goes to the system */
static uintptr_t page_size;

/* Zeros from the page on to the end of the mapping: what was cut off has no end before. */
static int replace(guard *g, uintptr_t at) {
    uintptr_t base = atomic_load(&g->base), page = at & ~(page_size - 1);
    size_t n = base + atomic_load(&g->n) - page;
    if (mmap((void *)page, n, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED)
        return 0;
    int_fast64_t offset = (int_fast64_t)(page - base), seen = atomic_load(&g->missing);
    while ((seen < 0 || offset < seen) && !atomic_compare_exchange_weak(&g->missing, &seen, offset)) {}
    return 1;
}

static void on_bus_error(int number, siginfo_t *info, void *context) {
    int kept = errno, n = atomic_load(&n_guards);
    uintptr_t at = (uintptr_t)info->si_addr;
    for (int i = 0; i < n && info->si_code > 0; i++) {
        uintptr_t base = atomic_load(&guards[i].base);
        if (base && at >= base && at - base < atomic_load(&guards[i].n) && replace(&guards[i], at)) {
            errno = kept;
            return;
        }
    }
    if (atomic_fetch_add(&passed_on, 1) == 0 && (before.sa_flags & SA_SIGINFO) && before.sa_sigaction) {
        before.sa_sigaction(number, info, context);
    } else if (!(before.sa_flags & SA_SIGINFO) && before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN
               && atomic_load(&passed_on) == 1) {
        before.sa_handler(number);
    } else {
        signal(number, SIG_DFL);
        raise(number);
    }
    errno = kept;
}

static void install(void) {
    struct sigaction now;
    if (sigaction(SIGBUS, NULL, &now) != 0 || ((now.sa_flags & SA_SIGINFO) && now.sa_sigaction == on_bus_error)) return;
    before = now;
    struct sigaction ours;
    memset(&ours, 0, sizeof ours);
    ours.sa_sigaction = on_bus_error;
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    sigemptyset(&ours.sa_mask);
    sigaction(SIGBUS, &ours, NULL);
}

int moe_guard_add(void *base, size_t n) {
    int found = -1;
    pthread_mutex_lock(&lock);
    page_size = (uintptr_t)sysconf(_SC_PAGESIZE);
    for (int i = 0; i < MAX_GUARDS && found < 0; i++)
        if (!atomic_load(&guards[i].base)) found = i;
    if (found >= 0) {
        atomic_store(&guards[found].missing, -1);
        atomic_store(&guards[found].n, (n + page_size - 1) & ~(page_size - 1));
        atomic_store(&guards[found].base, (uintptr_t)base);
        if (found >= atomic_load(&n_guards)) atomic_store(&n_guards, found + 1);
        install();
    }
    pthread_mutex_unlock(&lock);
    return found;
}

void moe_guard_remove(int i) {
    if (i >= 0) atomic_store(&guards[i].base, 0);
}

int64_t moe_guard_take(int i) {
    return i < 0 || atomic_load(&guards[i].missing) < 0 ? -1 : atomic_exchange(&guards[i].missing, -1);
}

int moe_guard_heal(int i, int fd, int64_t offset) {
    char *base = (char *)atomic_load(&guards[i].base);
    size_t n = atomic_load(&guards[i].n) - (size_t)offset;
    return mmap(base + offset, n, PROT_READ, MAP_SHARED | MAP_FIXED, fd, offset) == MAP_FAILED ? errno : 0;
}
