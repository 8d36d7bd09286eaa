"""Hyper-connections: several residual streams, of which every block reads a mix and to which its result is spread.

How much of which stream is computed from all of them: one product gives pre (S,), what the block's input takes of each
stream, post (S,), what each stream takes of its result, and comb (S, S), what each stream takes of the streams before.
Independent streams have no comb: each keeps what it is and takes its share of the result.
A HyperSplit stands before an attention or feed-forward block, a HyperJoin after it.
"""
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from moeengine.graph.block cimport Block, Linear, OUTPUT_ALL, OUTPUT_NONE, Pass, linear
from moeengine.graph.embed_head cimport Rope, rope_init, rope_row
from moeengine.graph.weights cimport Vector, Weight
from moeengine.kernels.table cimport checked_isa, moe_x_row_bytes
from moeengine.kernels.threads cimport team_barrier, team_claim

cdef extern from "math.h" nogil:
    float expf(float)

cdef enum:
    STREAMS = 4           # S; published models have no other number
    JOIN_COLUMNS = 512    # a unit of work
    MAX_ROPES = 2
N_STREAMS = STREAMS


cdef struct Start:
    int64_t n_embd
    int n_ropes
    Rope ropes[MAX_ROPES]


cdef void start_run(void *state, Pass *p, int ith, int nth) noexcept nogil:
    cdef const Start *s = <const Start *>state
    cdef int64_t t, i, j, E = s.n_embd, T = p.n_tokens, n_rot = s.ropes[0].n_rot
    cdef float *cs
    cdef float *back
    while True:
        t = team_claim(p.team, T)
        if t < 0:
            break
        for i in range(STREAMS):
            memcpy(p.streams + (t * STREAMS + i) * E, p.x + t * E, <size_t>E * sizeof(float))
        for i in range(s.n_ropes):
            cs, back = p.rope + (2 * i * T + t) * n_rot, p.rope + ((2 * i + 1) * T + t) * n_rot
            rope_row(&s.ropes[i], NULL, p.n_past + t, cs)
            for j in range(0, n_rot, 2):
                back[j], back[j + 1] = cs[j], -cs[j + 1]
    team_barrier(p.team)


cdef class HyperStartBlock(Block):
    """Every stream begins as the token's embedding. Tables of angles: p.rope (ropes, 2, T, n_rot), there and back.

    ropes : list of RopeConfig, all of one n_rot
    """

    def __init__(self, *, int n_embd, list ropes):
        cdef Start *s = <Start *>calloc(1, sizeof(Start))
        if s == NULL:
            raise MemoryError
        self.state = s
        self.run = start_run
        s.n_embd, s.n_ropes = n_embd, len(ropes)
        for i, rope in enumerate(ropes[:MAX_ROPES]):
            rope_init(&s.ropes[i], rope)

    def __dealloc__(self):
        free(self.state)


cdef struct Mixer:
    int64_t n_embd, n_mix
    Linear fn                # (n_mix, S * E)
    const float *scale       # (3,) of pre, post and comb; (1,) of a head
    const float *base        # (n_mix,)
    float eps                # of the norm
    float mix_eps            # of the mix
    int n_iterations         # of Sinkhorn's
    float magnitude          # post is this times a sigmoid
    float post_eps           # added to post


cdef inline int64_t padded(int64_t n) noexcept nogil:
    """Floats of a row of n, so that rows begin at multiples of 64 bytes."""
    return (n + 15) // 16 * 16


cdef void mix_streams(const Mixer *m, Pass *p, int64_t first, int64_t n) noexcept nogil:
    """p.mixes (n, n_mix) = fn(norm(all streams)) of the tokens from `first` on. Ends with a barrier."""
    cdef int64_t t, W = STREAMS * m.n_embd
    cdef int f = m.fn.type.x_format
    cdef const uint8_t *x[1]
    cdef size_t stride[1]
    cdef float *out[1]
    stride[0] = moe_x_row_bytes(p.isa, f, <size_t>W)
    x[0] = <const uint8_t *>(p.wide + p.n_tokens * padded(W))
    out[0] = p.mixes
    while True:
        t = team_claim(p.team, n)
        if t < 0:
            break
        p.isa.rms_norm(<size_t>W, p.streams + (first + t) * W, NULL, m.eps, p.wide + t * padded(W))
        p.isa.x[f].quantize_row(<size_t>W, p.wide + t * padded(W), <uint8_t *>x[0] + <size_t>t * stride[0])
    team_barrier(p.team)
    linear(p, &m.fn, 1, x, stride, out, n)


cdef inline float sigmoid(float x) noexcept nogil:
    return <float>1 / (<float>1 + expf(-x))


cdef void gather_streams(const Mixer *m, const float *streams, float *mix, float *x) noexcept nogil:
    """x (E,) = the sum of pre times streams (S, E). mix (S,): logits of pre, which replaces them."""
    cdef int64_t i, E = m.n_embd
    for i in range(STREAMS):
        mix[i] = sigmoid(mix[i] * m.scale[0] + m.base[i]) + m.mix_eps
    for i in range(E):
        x[i] = streams[i] * mix[0] + streams[E + i] * mix[1] + streams[2 * E + i] * mix[2] + streams[3 * E + i] * mix[3]


cdef void balance(const Mixer *m, float *comb) noexcept nogil:
    """comb (from, to): softmax over `to`, then columns and rows in turn divided by their sums."""
    cdef int64_t i, j, n
    cdef float top, total
    for i in range(STREAMS):
        top, total = comb[STREAMS * i], 0
        for j in range(1, STREAMS):
            top = max(top, comb[STREAMS * i + j])
        for j in range(STREAMS):
            comb[STREAMS * i + j] = expf(comb[STREAMS * i + j] - top)
            total = total + comb[STREAMS * i + j]
        total = <float>1 / total
        for j in range(STREAMS):
            comb[STREAMS * i + j] = comb[STREAMS * i + j] * total + m.mix_eps
    divide_by_sums(comb, 1, STREAMS, m.mix_eps)
    for n in range(1, m.n_iterations):
        divide_by_sums(comb, STREAMS, 1, m.mix_eps)
        divide_by_sums(comb, 1, STREAMS, m.mix_eps)


cdef void divide_by_sums(float *comb, int64_t outer, int64_t inner, float eps) noexcept nogil:
    """Lines of comb, `outer` elements from one to the next, `inner` between the elements of one."""
    cdef int64_t i, j
    cdef float total
    for i in range(STREAMS):
        total = eps
        for j in range(STREAMS):
            total = total + comb[i * outer + j * inner]
        total = <float>1 / total
        for j in range(STREAMS):
            comb[i * outer + j * inner] = comb[i * outer + j * inner] * total


cdef void split_run(void *state, Pass *p, int ith, int nth) noexcept nogil:
    cdef const Mixer *m = <const Mixer *>state
    cdef int64_t t, i, E = m.n_embd
    cdef float *mix
    mix_streams(m, p, 0, p.n_tokens)
    while True:
        t = team_claim(p.team, p.n_tokens)
        if t < 0:
            break
        mix = p.mixes + t * m.n_mix
        gather_streams(m, p.streams + t * STREAMS * E, mix, p.x + t * E)
        for i in range(STREAMS, 2 * STREAMS):
            mix[i] = m.magnitude * sigmoid(mix[i] * m.scale[1] + m.base[i]) + m.post_eps
        if m.n_mix == 2 * STREAMS:
            continue
        for i in range(2 * STREAMS, m.n_mix):
            mix[i] = mix[i] * m.scale[2] + m.base[i]
        balance(m, mix + 2 * STREAMS)
    team_barrier(p.team)


cdef void head_run(void *state, Pass *p, int ith, int nth) noexcept nogil:
    cdef const Mixer *m = <const Mixer *>state
    cdef int64_t t, E = m.n_embd, first = 0 if p.output == OUTPUT_ALL else p.n_tokens - 1
    if p.output == OUTPUT_NONE:
        return
    mix_streams(m, p, first, p.n_tokens - first)
    while True:
        t = team_claim(p.team, p.n_tokens - first)
        if t < 0:
            break
        gather_streams(m, p.streams + (first + t) * STREAMS * E, p.mixes + t * m.n_mix, p.x + (first + t) * E)
    team_barrier(p.team)


cdef void join_columns(Pass *p, int64_t t, int64_t e0, int64_t e1, int64_t E) noexcept nogil:
    """streams = post * out + comb * streams, columns e0 .. e1 of token t."""
    cdef const float *post = p.mixes + t * (2 + STREAMS) * STREAMS + STREAMS
    cdef const float *comb = post + STREAMS
    cdef const float *out = p.out + t * E
    cdef float *s = p.streams + t * STREAMS * E
    cdef float a, b, c, d
    cdef int64_t e, i
    for e in range(e0, e1):
        a, b, c, d = s[e], s[E + e], s[2 * E + e], s[3 * E + e]
        for i in range(STREAMS):
            s[i * E + e] = (out[e] * post[i] + a * comb[i] + b * comb[STREAMS + i] + c * comb[2 * STREAMS + i]
                            + d * comb[3 * STREAMS + i])


cdef void add_columns(Pass *p, int64_t t, int64_t e0, int64_t e1, int64_t E) noexcept nogil:
    """The same without comb: streams += post * out."""
    cdef const float *post = p.mixes + t * 2 * STREAMS + STREAMS
    cdef const float *out = p.out + t * E
    cdef float *s = p.streams + t * STREAMS * E
    cdef int64_t e, i
    for i in range(STREAMS):
        for e in range(e0, e1):
            s[i * E + e] = s[i * E + e] + out[e] * post[i]


cdef void join_run(void *state, Pass *p, int ith, int nth) noexcept nogil:
    cdef int64_t E = (<const Mixer *>state).n_embd, n = (E + JOIN_COLUMNS - 1) // JOIN_COLUMNS, unit, e
    cdef bint independent = (<const Mixer *>state).n_mix == 2 * STREAMS
    while True:
        unit = team_claim(p.team, p.n_tokens * n)
        if unit < 0:
            break
        e = unit % n * JOIN_COLUMNS
        if independent:
            add_columns(p, unit // n, e, min(E, e + JOIN_COLUMNS), E)
        else:
            join_columns(p, unit // n, e, min(E, e + JOIN_COLUMNS), E)
    team_barrier(p.team)


cdef class MixerBlock(Block):
    """What the blocks below share.

    Parameters
    ----------
    fn : Weight (n, S * E)       n is (2 + S) * S; 2 S of independent streams, S of a head
    scale : Vector (3,), (2,) or (1,)
    base : Vector (n,)
    eps : float                  of the norm before fn
    mix_eps : float              added to pre, to comb and to the sums that divide it
    n_iterations : int           of Sinkhorn's; at least 1
    magnitude, post_eps : float  post is the one times a sigmoid, and the other
    """

    def __init__(self, *, Weight fn, Vector scale, Vector base, float eps, float mix_eps, int n_iterations=1,
                 float magnitude=2, float post_eps=0):
        cdef Mixer *m = <Mixer *>calloc(1, sizeof(Mixer))
        if m == NULL:
            raise MemoryError
        self.state = m
        self.keep = [fn, scale, base]
        m.fn, m.n_mix, m.n_embd = fn.linear, fn.linear.n_rows, fn.linear.n_in // STREAMS
        m.scale, m.base, m.eps, m.mix_eps, m.n_iterations = scale.data, base.data, eps, mix_eps, n_iterations
        m.magnitude, m.post_eps = magnitude, post_eps

    def __dealloc__(self):
        free(self.state)

    @property
    def n_wide(self):
        """Floats a token of Pass.wide that the block needs."""
        cdef const Mixer *m = <const Mixer *>self.state
        cdef int64_t W = STREAMS * m.n_embd
        return padded(W) + <int64_t>moe_x_row_bytes(checked_isa(), m.fn.type.x_format, <size_t>W) // 4


cdef class HyperSplitBlock(MixerBlock):
    """x = a mix of the streams; keeps in p.mixes how the result goes back to them."""

    def __init__(self, **parts):
        super().__init__(**parts)
        self.run = split_run


cdef class HyperHeadBlock(MixerBlock):
    """x = a mix of the streams, for the head: of the positions that the pass asks for."""

    def __init__(self, **parts):
        super().__init__(**parts)
        self.run = head_run


cdef class HyperJoinBlock(Block):
    """streams = post * p.out + comb * streams, by what the HyperSplitBlock before has left in p.mixes. independent: no comb."""

    def __init__(self, *, int n_embd, bint independent=False):
        cdef Mixer *m = <Mixer *>calloc(1, sizeof(Mixer))
        if m == NULL:
            raise MemoryError
        self.state = m
        self.run = join_run
        m.n_embd, m.n_mix = n_embd, (2 if independent else 2 + STREAMS) * STREAMS

    def __dealloc__(self):
        free(self.state)
