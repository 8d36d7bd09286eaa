"""The team of threads; see csrc/team.h for the contract of each call."""
from libc.stdint cimport int64_t

cdef extern from "team.h":
    ctypedef struct moe_team
    ctypedef void (*moe_job)(void *arg, int ith, int nth) noexcept nogil

cdef class Team:
    cdef moe_team *team          # never NULL after __cinit__
    cdef object scratch          # memory that its runs use one after another, or None; the graph's

# team.c is linked into kernels.threads only; other modules reach it through these.
cdef void team_run(moe_team *team, moe_job job, void *arg) noexcept nogil
cdef void team_run_alone(moe_team *team, moe_job job, void *arg) noexcept nogil
cdef bint team_is_crowded(const moe_team *team) noexcept nogil
cdef void team_barrier(moe_team *team) noexcept nogil
cdef int64_t team_claim(moe_team *team, int64_t n) noexcept nogil
cdef int team_size(const moe_team *team) noexcept nogil
