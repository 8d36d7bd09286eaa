"""Owns all threads that compute. Nothing else in moeengine starts a compute thread."""
from libc.stdint cimport int64_t

cdef extern from "team.h":
    moe_team *moe_team_new(int n) nogil
    void moe_team_free(moe_team *team) nogil
    int moe_team_size(const moe_team *team) nogil
    void moe_team_run(moe_team *team, moe_job job, void *arg) noexcept nogil
    void moe_team_run_alone(moe_team *team, moe_job job, void *arg) noexcept nogil
    int moe_team_is_crowded(const moe_team *team) nogil
    void moe_team_barrier(moe_team *team) noexcept nogil
    int64_t moe_team_claim(moe_team *team, int64_t n) noexcept nogil
    int64_t moe_team_barriers(const moe_team *team) nogil


cdef void team_run(moe_team *team, moe_job job, void *arg) noexcept nogil:
    moe_team_run(team, job, arg)


cdef void team_run_alone(moe_team *team, moe_job job, void *arg) noexcept nogil:
    moe_team_run_alone(team, job, arg)


cdef bint team_is_crowded(const moe_team *team) noexcept nogil:
    return moe_team_is_crowded(team) != 0


cdef void team_barrier(moe_team *team) noexcept nogil:
    moe_team_barrier(team)


cdef int64_t team_claim(moe_team *team, int64_t n) noexcept nogil:
    return moe_team_claim(team, n)


cdef int team_size(const moe_team *team) noexcept nogil:
    return moe_team_size(team)


cdef class Team:
    """`n_threads` threads that work through one forward pass at a time.

    Callers take turns: a Team is not safe for two runs at once. In a forked child the threads are
    started anew at the next run.
    """

    def __cinit__(self, int n_threads):
        if n_threads < 1 or n_threads > 1024:
            raise ValueError(f"n_threads: found {n_threads}, expected 1 to 1024")
        self.team = moe_team_new(n_threads)
        if self.team == NULL:
            raise MemoryError(f"no memory for a team of {n_threads} threads")

    def __dealloc__(self):
        with nogil:
            moe_team_free(self.team)

    @property
    def n_threads(self):
        """Threads asked for."""
        return moe_team_size(self.team)

    @property
    def n_barriers(self):
        """Barriers passed since the team was made."""
        return moe_team_barriers(self.team)
