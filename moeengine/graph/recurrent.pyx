"""The recurrent state of a timeline: which number of tokens it belongs to, and how it gets to another.

It cannot be taken back. So a copy is kept of it as it was before the last longer chunk, and a timeline that is to be
shorter than the state goes on from the copy, or from the beginning.
"""
from libc.stdint cimport int64_t
from libc.string cimport memcpy, memset

from moeengine.errors import ConfigError

cdef enum:
    KEEP_TOKENS = 16      # a chunk of so many costs much more than the copy
    BROKEN = -1


cdef class RecurrentState:
    """State of n float32 values at `live`, with room for the copy behind it. Owned by its Context."""

    @staticmethod
    cdef RecurrentState new(float *live, int64_t n):
        cdef RecurrentState self = RecurrentState.__new__(RecurrentState)
        self.live, self.kept, self.n = live, live + n, n
        return self

    cpdef int64_t n_ready(self, int64_t n_past):
        """The largest number of tokens, at most n_past, that the state can be brought to."""
        cdef int64_t n = 0
        if self.n == 0:
            return n_past
        if self.n_kept <= n_past:
            n = self.n_kept
        if self.n_live <= n_past:
            n = max(n, self.n_live)
        return n

    cdef int begin(self, int64_t n_past, int64_t n_tokens) except -1:
        """Before a chunk of n_tokens after n_past: bring the state there. ConfigError: it cannot be."""
        if self.n == 0:
            return 0
        if self.n_ready(n_past) != n_past:
            raise ConfigError(f"n_past: found {n_past}, expected {self.n_live} or {self.n_kept}: the recurrent state is of that "
                              "many tokens")
        if self.n_kept > n_past:     # of tokens that are now replaced
            self.n_kept = 0
        if n_past == 0:
            memset(self.live, 0, <size_t>self.n * sizeof(float))
        elif self.n_live != n_past:
            self.take_kept()
        elif n_tokens >= KEEP_TOKENS and self.n_kept != n_past:
            memcpy(self.kept, self.live, <size_t>self.n * sizeof(float))
            self.n_kept = n_past
        self.n_live = BROKEN         # until the chunk is done
        return 0

    cdef void take_kept(self) noexcept:
        """Make the copy the state."""
        memcpy(self.live, self.kept, <size_t>self.n * sizeof(float))
        self.n_live = self.n_kept

    cdef void end(self, int64_t n_past) noexcept:
        """The chunk was computed; the state is of n_past tokens."""
        self.n_live = n_past

    cdef void replaced(self, int64_t n_past) noexcept:
        """`live` was filled with the state of n_past tokens of another timeline."""
        self.n_live, self.n_kept = n_past, 0
