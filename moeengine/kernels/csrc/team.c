/* Threads, barrier and work counter. Waiting spins for a few microseconds and then sleeps on a
 * futex, so that more threads than cores (or a CPU quota) slow a pass down but never stall it. */
#define _GNU_SOURCE
#include "team.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#if defined(__x86_64__)
#define cpu_relax() __builtin_ia32_pause()
#else
#define cpu_relax() ((void)0)
#endif

enum { SPIN_ROUNDS = 4000 };

/* Members are counted out of their processors, within CROWD_S or so: on a quiet machine one to four times, by threads of
 * the kernel that soon go away; beside a busy program of the same weight some twenty times. From SUSPECT on it is also measured how
 * long they wait to go on, and CROWD are one if they waited for LOST_S. */
enum { SUSPECT = 2, CROWD = 6 };
static const double CROWD_S = 0.1, LOST_S = 0.02, LEAST_PAUSE_S = 0.1, MOST_PAUSE_S = 2.0, CALM_S = 1.0;

struct member {
    moe_team *team;
    int ith;
};

struct moe_team {
    int n_asked;
    int n_running; /* members that exist, this one included */
    int n_members; /* of the current run: n_running or 1 */
    int spin;
    pid_t pid; /* process the threads were started in; 0 = not started */
    pthread_t *threads;
    struct member *members;
    moe_job job;
    void *arg;
    int stop;
    int64_t n_barriers;
    /* of the crowd: decaying sums, until when the team is not asked, how long next time, the last one's time */
    double crowd, lost_s, alone_until_s, pause_s, crowded_s;
    atomic_long preempted, lost_ns; /* in the current run */
    _Alignas(64) atomic_uint run_seq;  /* goes up by one for every run */
    _Alignas(64) atomic_uint arrived;  /* members waiting at the barrier */
    _Alignas(64) atomic_uint barrier_seq;
    _Alignas(64) atomic_int_fast64_t next;
};

static void futex_wait(atomic_uint *word, unsigned seen) {
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void futex_wake_all(atomic_uint *word) {
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* How often this thread lost its processor to another one. */
static long preemptions(void) {
    struct rusage u;
    return getrusage(RUSAGE_THREAD, &u) == 0 ? u.ru_nivcsw : 0;
}

/* How long this thread has been ready to run and did not; negative where the system does not tell. */
static long waited_ns(void) {
    char text[64];
    unsigned long long ran, waited;
    int fd = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return -1;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    text[n > 0 ? n : 0] = 0;
    return sscanf(text, "%llu %llu", &ran, &waited) == 2 && ran ? (long)waited : -1;
}

/* The job of one member, with its preemptions counted. */
static void work(moe_team *team, int ith) {
    const int is_suspect = team->crowd >= SUSPECT;
    const long before = preemptions(), waited_before = is_suspect ? waited_ns() : -1;
    team->job(team->arg, ith, team->n_members);
    const long n = preemptions() - before, waited = is_suspect ? waited_ns() : -1;
    atomic_fetch_add_explicit(&team->preempted, n, memory_order_relaxed);
    if (waited >= 0 && waited_before >= 0) atomic_fetch_add_explicit(&team->lost_ns, waited - waited_before, memory_order_relaxed);
    else if (is_suspect) atomic_fetch_add_explicit(&team->lost_ns, (long)(1e9 * LOST_S) * n, memory_order_relaxed);
}

/* After a run that took from start_s to end_s. */
static void judge_crowd(moe_team *team, double start_s, double end_s) {
    double share = (end_s - start_s) / CROWD_S;
    double left = share < 1 ? 1 - share : 0;
    team->crowd = team->crowd * left + (double)atomic_exchange_explicit(&team->preempted, 0, memory_order_relaxed);
    team->lost_s = team->lost_s * left + 1e-9 * (double)atomic_exchange_explicit(&team->lost_ns, 0, memory_order_relaxed);
    if (team->crowd > CROWD && team->lost_s > LOST_S) {
        team->pause_s = end_s - team->crowded_s > team->pause_s + CALM_S ? LEAST_PAUSE_S : 2 * team->pause_s;
        if (team->pause_s > MOST_PAUSE_S) team->pause_s = MOST_PAUSE_S;
        team->crowd = team->lost_s = 0;
        team->crowded_s = end_s;
        team->alone_until_s = end_s + team->pause_s;
    }
}

int moe_team_is_crowded(const moe_team *team) {
    return team->n_running == 2 && team->alone_until_s > 0 && now_s() < team->alone_until_s;
}

/* Returns when *word is no longer `seen`. */
static void wait_change(atomic_uint *word, unsigned seen, int spin) {
    for (int i = 0; i < spin; i++) {
        if (atomic_load_explicit(word, memory_order_acquire) != seen) return;
        cpu_relax();
    }
    while (atomic_load_explicit(word, memory_order_acquire) == seen) futex_wait(word, seen);
}

static void release(atomic_uint *word) {
    atomic_fetch_add_explicit(word, 1, memory_order_acq_rel);
    futex_wake_all(word);
}

void moe_team_barrier(moe_team *team) {
    if (team->n_members == 1) {
        team->n_barriers++;
        atomic_store_explicit(&team->next, 0, memory_order_relaxed);
        return;
    }
    unsigned seq = atomic_load_explicit(&team->barrier_seq, memory_order_acquire);
    unsigned before = atomic_fetch_add_explicit(&team->arrived, 1, memory_order_acq_rel);
    if (before + 1 == (unsigned)team->n_members) {
        team->n_barriers++;
        atomic_store_explicit(&team->next, 0, memory_order_relaxed);
        atomic_store_explicit(&team->arrived, 0, memory_order_relaxed);
        release(&team->barrier_seq);
    } else {
        wait_change(&team->barrier_seq, seq, team->spin);
    }
}

int64_t moe_team_claim(moe_team *team, int64_t n) {
    int64_t i = atomic_fetch_add_explicit(&team->next, 1, memory_order_relaxed);
    return i < n ? i : -1;
}

int64_t moe_team_barriers(const moe_team *team) { return team->n_barriers; }
int moe_team_size(const moe_team *team) { return team->n_asked; }

static void *member_main(void *p) {
    struct member *me = p;
    moe_team *team = me->team;
    unsigned seen = 0;
    for (;;) {
        wait_change(&team->run_seq, seen, team->spin);
        seen = atomic_load_explicit(&team->run_seq, memory_order_acquire);
        if (team->stop) return NULL;
        work(team, me->ith);
        moe_team_barrier(team);
    }
}

/* Starts the threads; n_running becomes what the system granted. Signals stay with Python's threads. */
static void start(moe_team *team) {
    cpu_set_t set;
    int n_cpu = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    team->spin = team->n_asked <= n_cpu ? SPIN_ROUNDS : 0;
    atomic_store(&team->run_seq, 0);
    atomic_store(&team->arrived, 0);
    atomic_store(&team->barrier_seq, 0);
    atomic_store(&team->next, 0);
    sigset_t all, old;
    sigfillset(&all);
    sigdelset(&all, SIGBUS); /* of a mapped file that lost bytes: for the handler, which a blocked one never reaches */
    pthread_sigmask(SIG_SETMASK, &all, &old);
    team->n_running = 1;
    for (int i = 1; i < team->n_asked; i++) {
        team->members[i] = (struct member){team, i};
        if (pthread_create(&team->threads[i], NULL, member_main, &team->members[i]) != 0) break;
        team->n_running++;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    team->pid = getpid();
}

moe_team *moe_team_new(int n) {
    moe_team *team = NULL;
    if (n < 1) n = 1;
    int err = posix_memalign((void **)&team, 64, sizeof *team);
    if (err) {
        errno = err;
        return NULL;
    }
    *team = (moe_team){.n_asked = n, .n_running = 1, .pause_s = LEAST_PAUSE_S};
    team->threads = calloc((size_t)n, sizeof *team->threads);
    team->members = calloc((size_t)n, sizeof *team->members);
    if (!team->threads || !team->members) {
        moe_team_free(team);
        errno = ENOMEM;
        return NULL;
    }
    return team;
}

void moe_team_free(moe_team *team) {
    if (!team) return;
    if (team->pid == getpid()) {
        team->stop = 1;
        release(&team->run_seq);
        for (int i = 1; i < team->n_running; i++) pthread_join(team->threads[i], NULL);
    }
    free(team->threads);
    free(team->members);
    free(team);
}

void moe_team_run(moe_team *team, moe_job job, void *arg) {
    if (team->pid != getpid()) start(team);
    team->job = job;
    team->arg = arg;
    team->n_members = team->n_running;
    if (team->n_running == 1) {
        job(arg, 0, 1);
        moe_team_barrier(team);
        return;
    }
    double start_s = now_s();
    release(&team->run_seq);
    work(team, 0);
    moe_team_barrier(team);
    judge_crowd(team, start_s, now_s());
}

void moe_team_run_alone(moe_team *team, moe_job job, void *arg) {
    team->n_members = 1;
    job(arg, 0, 1);
    moe_team_barrier(team);
}
