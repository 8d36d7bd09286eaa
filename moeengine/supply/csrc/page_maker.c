#define _GNU_SOURCE /* madvise */
#include "page_maker.h"
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE /* since Linux 5.14 */
#define MADV_POPULATE_WRITE 23
#endif

enum { PIECE = 32 << 20 };

static void *make(void *arg) {
    moe_page_maker *m = arg;
    for (size_t at = 0; at < m->n_bytes && !m->stop; at += PIECE) {
        size_t n = m->n_bytes - at < PIECE ? m->n_bytes - at : PIECE;
        if (madvise(m->base + at, n, MADV_POPULATE_WRITE) != 0) break;
    }
    return NULL;
}

void moe_page_maker_start(moe_page_maker *m, char *base, size_t n_bytes) {
    m->base = base, m->n_bytes = n_bytes, m->stop = 0;
    sigset_t all, old; /* signals are for the caller's threads */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    m->pid = pthread_create(&m->thread, NULL, make, m) == 0 ? getpid() : 0;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
}

void moe_page_maker_stop(moe_page_maker *m) {
    if (m->pid == getpid()) {
        m->stop = 1;
        pthread_join(m->thread, NULL);
    }
    m->pid = 0;
}
