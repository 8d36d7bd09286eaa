"""The parts that blocks are made of: matrix products split over the team, norms, quantized rows."""
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from moeengine.graph.weights cimport values_of
from moeengine.kernels.table cimport (
    MOE_X_F32, moe_isa, moe_mul, moe_type, moe_x_row_bytes,
)
from moeengine.kernels.threads cimport team_barrier, team_claim, team_size


cdef class Block:
    def __cinit__(self):
        self.run = NULL
        self.state = NULL
        self.keep = []


cdef void linear_chunk(const moe_isa *isa, const Linear *w, int64_t r0, int64_t r1,
                       int64_t n_x, const uint8_t *x, size_t x_stride,
                       float *out, size_t out_stride, const uint8_t *next_w) noexcept nogil:
    """out[t, r] for rows r0 <= r < r1 of W and n_x activation rows; `out` points at row 0, column 0.
    next_w: NULL, or the rows of weights that this thread will likely multiply next."""
    cdef moe_mul m
    cdef int64_t t, r
    cdef float *row
    m.n_in = <size_t>w.n_in
    m.n_rows = <size_t>(r1 - r0)
    m.w = w.w + <size_t>r0 * w.row_bytes
    m.w_stride = w.row_bytes
    m.n_x = <size_t>n_x
    m.x = x
    m.x_stride = x_stride
    m.out = out + r0
    m.out_stride = out_stride
    m.next = next_w
    w.type.mul_mat(&m)
    if w.scale == 1.0 and w.bias == NULL:
        return
    for t in range(n_x):
        row = out + t * out_stride
        if w.bias != NULL and w.bias_first:
            for r in range(r0, r1):
                row[r] = row[r] + w.bias[r]
        if w.scale != 1.0:
            for r in range(r0, r1):
                row[r] = row[r] * w.scale
        if w.bias != NULL and not w.bias_first:
            for r in range(r0, r1):
                row[r] = row[r] + w.bias[r]


cdef int64_t row_chunk(const Pass *p, int64_t n_rows, int64_t n_x) noexcept nogil:
    """Most weight rows a unit of work where n_rows are to be shared out: fewer in a large team. No result depends on it."""
    cdef int64_t chunk = ONE_X_ROW_CHUNK if n_x == 1 else ROW_CHUNK, wanted = UNITS_A_THREAD * team_size(p.team)
    while chunk > LEAST_ROW_CHUNK and n_rows < wanted * chunk:
        chunk //= 2
    return chunk


cdef int64_t even_chunk(int64_t n_rows, int64_t chunk) noexcept nogil:
    """Rows a unit that share n_rows of one matrix out evenly, at most `chunk` each."""
    cdef int64_t n = max(1, (n_rows + chunk - 1) // chunk)
    return ((n_rows + n - 1) // n + LEAST_ROW_CHUNK - 1) // LEAST_ROW_CHUNK * LEAST_ROW_CHUNK


cdef int64_t x_chunk(size_t x_stride, int64_t n_x) noexcept nogil:
    """Activation rows a unit of work takes at once."""
    cdef int64_t n
    if n_x <= 1 or x_stride == 0:
        return 1
    n = <int64_t>(X_CHUNK_BYTES // x_stride)
    n = n - n % 32 if n >= 32 else 32
    return min(n, n_x, <int64_t>X_CHUNK_ROWS)


cdef int64_t rows_of_unit(const Linear *w, int64_t most, int64_t c, int *i, int64_t *r0) noexcept nogil:
    """Unit c of the rows of several matrices: those from r0 on of w[i]. Returns how many rows a unit of w[i] has."""
    cdef int64_t n_r
    i[0] = 0
    while True:
        n_r = even_chunk(w[i[0]].n_rows, most)
        if c * n_r < w[i[0]].n_rows:
            r0[0] = c * n_r
            return n_r
        c -= (w[i[0]].n_rows + n_r - 1) // n_r
        i[0] += 1


cdef void linear(Pass *p, const Linear *w, int n_w, const uint8_t **x, const size_t *x_stride,
                 float **out, int64_t n_x) noexcept nogil:
    """n_w products of the same activation rows: out[i] (n_x, w[i].n_rows). Ends with a barrier."""
    cdef int64_t n_chunks = 0, n_rows = 0, unit, next_unit, r0, r1, t0, t1, n_xc, n_r, most
    cdef int64_t n_tok = x_chunk(x_stride[0], n_x)
    cdef const uint8_t *next_w
    cdef int i
    if n_x > 0:
        n_xc = (n_x + n_tok - 1) // n_tok
        for i in range(n_w):
            n_rows += w[i].n_rows
        most = row_chunk(p, n_rows * n_xc, n_x)
        for i in range(n_w):
            n_r = even_chunk(w[i].n_rows, most)
            n_chunks += (w[i].n_rows + n_r - 1) // n_r
        while True:
            unit = team_claim(p.team, n_chunks * n_xc)
            if unit < 0:
                break
            if cancelled(p):
                continue
            next_w = NULL
            next_unit = unit + team_size(p.team)     # threads take turns, as a rule
            if next_unit < n_chunks * n_xc:
                rows_of_unit(w, most, next_unit % n_chunks, &i, &r0)
                next_w = w[i].w + <size_t>r0 * w[i].row_bytes
            t0 = unit // n_chunks * n_tok
            t1 = min(t0 + n_tok, n_x)
            n_r = rows_of_unit(w, most, unit % n_chunks, &i, &r0)
            r1 = min(r0 + n_r, w[i].n_rows)
            linear_chunk(p.isa, &w[i], r0, r1, t1 - t0, x[i] + <size_t>t0 * x_stride[i], x_stride[i],
                         out[i] + t0 * w[i].n_rows, <size_t>w[i].n_rows, next_w)
    team_barrier(p.team)


cdef void norm_rows(Pass *p, const float *w, float eps, unsigned formats, int64_t n_embd) noexcept nogil:
    """p.norm = rms_norm(p.x) * w, and the rows in every activation format of the bit set `formats`."""
    cdef StreamNorm norm
    norm.weight, norm.bias, norm.eps, norm.centred, norm.of_kept = w, NULL, eps, False, False
    read_stream(p, &norm, formats, n_embd)


cdef void stream_norm_row(const moe_isa *isa, const StreamNorm *norm, int64_t n_embd, const float *x, float *y) noexcept nogil:
    """y (E,) = the norm of a row x of the stream"""
    if norm.centred:
        isa.layer_norm(<size_t>n_embd, x, norm.weight, norm.eps, y)
    else:
        isa.rms_norm(<size_t>n_embd, x, norm.weight, norm.eps, y)
    if norm.bias != NULL:
        isa.add(<size_t>n_embd, y, norm.bias, y)


cdef int stream_norm_init(StreamNorm *n, weight, bias, float eps, bint centred=False, bint of_kept=False) except -1:
    n.weight, n.bias, n.eps, n.centred, n.of_kept = values_of(weight), values_of(bias), eps, centred, of_kept
    return 0


cdef void read_stream(Pass *p, const StreamNorm *norm, unsigned formats, int64_t n_embd) noexcept nogil:
    """p.norm = the stream normed, and the rows in every activation format of the bit set `formats`. Ends with a barrier."""
    cdef int64_t t
    cdef const float *x = p.kept if norm.of_kept else p.x
    cdef int f
    cdef float *row
    while True:
        t = team_claim(p.team, p.n_tokens)
        if t < 0:
            break
        row = p.norm + t * n_embd
        stream_norm_row(p.isa, norm, n_embd, x + t * n_embd, row)
        for f in range(MOE_X_COUNT):
            if formats >> f & 1:
                p.isa.x[f].quantize_row(<size_t>n_embd, row,
                                        p.xq[f] + <size_t>t * moe_x_row_bytes(p.isa, f, <size_t>n_embd))
    team_barrier(p.team)


cdef void quantize_rows(Pass *p, const float *x, int64_t n_x, int64_t n, size_t x_stride,
                        int x_format, uint8_t *out) noexcept nogil:
    """n_x rows of n floats, x_stride floats apart -> rows in x_format. Ends with a barrier."""
    cdef int64_t t
    cdef size_t row_bytes = moe_x_row_bytes(p.isa, x_format, <size_t>n)
    while True:
        t = team_claim(p.team, n_x)
        if t < 0:
            break
        p.isa.x[x_format].quantize_row(<size_t>n, x + t * x_stride, out + <size_t>t * row_bytes)
    team_barrier(p.team)


cdef void residual_row(Pass *p, int64_t t, int64_t n_embd, const Residual *r) noexcept nogil:
    """p.out of token t joins p.x; r NULL: is added to it. Overwrites p.out where it is normed or scaled before."""
    cdef float *x = p.x + t * n_embd
    cdef float *out = p.out + t * n_embd
    if r == NULL:
        p.isa.add(<size_t>n_embd, x, out, x)
        return
    if r.norm != NULL:
        p.isa.rms_norm(<size_t>n_embd, out, r.norm, r.eps, out)
    if r.scale != 1:
        p.isa.scale(<size_t>n_embd, r.scale, out, out)
    p.isa.add(<size_t>n_embd, x, out, x)
    if r.after != 1:
        p.isa.scale(<size_t>n_embd, r.after, x, x)


cdef void add_residual(Pass *p, int64_t n_embd, const Residual *r) noexcept nogil:
    """residual_row for all tokens, the end of a block. Ends with a barrier."""
    cdef int64_t t
    while True:
        t = team_claim(p.team, p.n_tokens)
        if t < 0:
            break
        residual_row(p, t, n_embd, r)
    team_barrier(p.team)


cdef int residual_init(Residual *r, float scale, norm, float eps, float after) except -1:
    r.scale, r.after, r.eps, r.norm = scale, after, eps, values_of(norm)
    return 0


cdef struct KeepState:
    int64_t n_embd


cdef void keep_run(void *state, Pass *p, int ith, int nth) noexcept nogil:
    cdef int64_t t, E = (<const KeepState *>state).n_embd
    while True:
        t = team_claim(p.team, p.n_tokens)
        if t < 0:
            break
        memcpy(p.kept + t * E, p.x + t * E, <size_t>E * sizeof(float))
    team_barrier(p.team)


cdef class KeepBlock(Block):
    """Keeps the stream as it is for later blocks that read it so (StreamNorm.of_kept): parallel branches of a layer."""

    def __init__(self, int64_t n_embd):
        cdef KeepState *s = <KeepState *>calloc(1, sizeof(KeepState))
        if s == NULL:
            raise MemoryError
        self.state, self.run, s.n_embd = s, keep_run, n_embd

    def __dealloc__(self):
        free(self.state)


cdef void pass_fail(Pass *p, int error, int layer, int expert) noexcept nogil:
    """Keeps the first failure; a race between threads keeps one of them."""
    if p.error == PASS_OK:
        p.error_layer = layer
        p.error_expert = expert
        p.error = error
