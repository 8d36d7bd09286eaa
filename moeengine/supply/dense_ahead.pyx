"""The weights beside the experts, where they are left to the page cache: each tier has those of the next layers read ahead.

Exactly those are read, and only where the page cache has lost them. What the system reads ahead of itself around a fault would
push out more than it brings, so it is told that faults come at random.
"""
from libc.stdint cimport int64_t, uintptr_t
from libc.stdlib cimport calloc, free

from moeengine.supply.advice cimport is_resident

cdef extern from "<fcntl.h>" nogil:
    int posix_fadvise(int fd, long offset, long length, int advice)
    int POSIX_FADV_WILLNEED


cdef void announce_dense(DenseAhead *d, int64_t i) noexcept nogil:
    """Has the weights read ahead that come after tier i."""
    cdef int64_t k
    cdef DenseRange *r
    if d.ranges == NULL:
        return
    for k in range(d.first[i], d.first[i + 1]):
        r = &d.ranges[k]
        if not is_resident(r.at, r.n):
            d.n_announced += 1
            posix_fadvise(r.fd, r.offset, r.n, POSIX_FADV_WILLNEED)


cdef int dense_ahead_init(DenseAhead *d, model_at, list layers) except -1:
    """Fills *d, which is zero, and makes the first announcements. layers: of every tier, ascending.

    A tier announces the weights of the layers from the next on, up to the one that announces itself.
    """
    cdef int64_t i, n = sum(map(len, model_at.dense.values())), n_tiers = len(layers), at = 0
    if n == 0 or not layers:
        return 0
    d.ranges = <DenseRange *>calloc(n, sizeof(DenseRange))
    d.first = <int64_t *>calloc(n_tiers + 1, sizeof(int64_t))
    if d.ranges == NULL or d.first == NULL:
        dense_ahead_free(d)
        raise MemoryError
    last = max(list(model_at.dense) + layers)
    for i in range(n_tiers):
        d.first[i] = at
        if i + 1 < n_tiers:
            wanted = list(range(layers[i] + 1, layers[i + 1] + 1))
        else:        # the head, and the next pass's first layers
            wanted = list(range(layers[i] + 1, last + 1)) + [-1] + list(range(layers[0] + 1))
        for il in wanted:
            for shard, offset, n_bytes in model_at.dense.get(il, ()):
                d.ranges[at].at = <const char *><uintptr_t>(model_at.maps[shard].address + offset)
                d.ranges[at].offset, d.ranges[at].n = offset, n_bytes
                d.ranges[at].fd = model_at.maps[shard].fd
                at += 1
    d.first[n_tiers] = at
    for mapped in model_at.maps:
        mapped.advise(0, mapped.size, "random")
    for i in range(n_tiers):
        announce_dense(d, i)
    return 0


cdef void dense_ahead_free(DenseAhead *d) noexcept nogil:
    """Announces nothing from now on. May be called again."""
    free(d.ranges)
    free(d.first)
    d.ranges, d.first = NULL, NULL
