/* A team of threads that works through a forward pass together. The caller of moe_team_run is
 * member 0; the others sleep between runs. */
#ifndef MOE_TEAM_H
#define MOE_TEAM_H
#include <stdint.h>

typedef struct moe_team moe_team;
typedef void (*moe_job)(void *arg, int ith, int nth);

/* n >= 1 members; NULL with errno set when memory is short. Threads start at the first run. */
moe_team *moe_team_new(int n);
void moe_team_free(moe_team *team); /* no run may be under way; NULL is allowed */
int moe_team_size(const moe_team *team);

/* Calls job(arg, ith, nth) on every member and returns when all have returned. nth is the number of
 * members that really run: fewer than asked where the system refuses threads. Starts the threads
 * anew in a forked child. Not reentrant; callers take turns. */
void moe_team_run(moe_team *team, moe_job job, void *arg);
/* The same on the calling thread alone: for work that is smaller than waking and waiting. */
void moe_team_run_alone(moe_team *team, moe_job job, void *arg);

/* Whether other programs want the same processors so much that members wait for each other most of the time. Of two
 * members one alone is then faster with short runs, which this says for a while; then the team is tried again. */
int moe_team_is_crowded(const moe_team *team);

/* Inside a job: waits for every member; also starts the next series of moe_team_claim. */
void moe_team_barrier(moe_team *team);
/* Inside a job: the next unclaimed index 0, 1, ... below n, or -1. One series between two barriers. */
int64_t moe_team_claim(moe_team *team, int64_t n);
/* Barriers passed by member 0 since the team was made. */
int64_t moe_team_barriers(const moe_team *team);

#endif
