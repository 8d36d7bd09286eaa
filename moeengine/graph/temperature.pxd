"""What queries are multiplied with by their position, so that attention stays sharp over long texts."""
from libc.math cimport floor, log
from libc.stdint cimport int64_t

cdef struct Temperature:
    double scale        # 0: queries keep their length
    double length       # positions after which they grow
    double offset       # of positions


cdef inline float temperature(const Temperature *t, int64_t pos) noexcept nogil:
    return <float>(log(floor((pos + t.offset) / t.length) + 1) * t.scale + 1)
