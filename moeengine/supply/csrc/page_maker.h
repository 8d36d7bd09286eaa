/* A thread that has the pages of some anonymous memory made before they are used. */
#ifndef MOE_PAGE_MAKER_H
#define MOE_PAGE_MAKER_H
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/types.h>

typedef struct moe_page_maker {
    char *base; /* a multiple of the page size */
    size_t n_bytes;
    atomic_int stop;
    pid_t pid; /* process that the thread runs in; 0: there is none */
    pthread_t thread;
} moe_page_maker;

/* From the first page to the last. Where the system has no thread to give or cannot, pages are made with their use. */
void moe_page_maker_start(moe_page_maker *m, char *base, size_t n_bytes);
/* Ends the thread, after which the memory may be given back. Again, or in a forked child: nothing. */
void moe_page_maker_stop(moe_page_maker *m);

#endif
