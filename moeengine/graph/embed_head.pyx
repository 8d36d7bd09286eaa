"""The ends of a forward pass: token embedding and rotation tables first, output norm and head last."""
from libc.math cimport cosf, sinf
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport calloc, free

from moeengine.graph.block cimport (
    Block, Linear, OUTPUT_ALL, OUTPUT_LAST, OUTPUT_NONE, Pass, StreamNorm, linear, stream_norm_init, stream_norm_row,
)
from moeengine.graph.weights cimport Vector, Weight
from moeengine.kernels.table cimport MOE_X_COUNT, moe_x_row_bytes
from moeengine.kernels.threads cimport team_barrier, team_claim


cdef enum:
    MAX_ROPES = 2
    CAP_CHUNK = 8192        # logits a unit of work

cdef struct RopeTable:
    Rope rope
    const float *freq_factors   # (n_rot/2,) or NULL
    const float *long_factors   # the same for contexts of more than n_ctx_orig positions
    int64_t n_ctx_orig

cdef struct Embed:
    Linear embd
    float scale
    int n_ropes
    RopeTable ropes[MAX_ROPES]


cdef void rope_row(const Rope *r, const float *freq_factors, int64_t pos, float *cs) noexcept nogil:
    """The angle is a running float32 product, as in ggml."""
    cdef int64_t i
    cdef float theta = <float>pos, extrap, angle, ramp
    for i in range(r.n_rot // 2):
        extrap = theta / freq_factors[i] if freq_factors != NULL else theta
        angle = r.freq_scale * extrap
        if r.ext_factor != 0:
            ramp = (i - r.corr_low) / max(<float>0.001, r.corr_high - r.corr_low)
            ramp = (1 - min(<float>1, max(<float>0, ramp))) * r.ext_factor
            angle = angle * (1 - ramp) + extrap * ramp
        cs[2 * i] = cosf(angle) * r.attn_factor
        cs[2 * i + 1] = sinf(angle) * r.attn_factor
        theta = theta * r.theta_scale


cdef void rope_init(Rope *r, config):
    r.n_rot, r.theta_scale, r.freq_scale = config.n_rot, config.theta_scale, config.freq_scale
    r.ext_factor, r.attn_factor = config.ext_factor, config.attn_factor
    r.corr_low, r.corr_high = config.corr_low, config.corr_high


cdef void rope_rows(const Embed *e, Pass *p, int64_t t) noexcept nogil:
    """The row of token t in every table."""
    cdef const RopeTable *table
    cdef float *at = p.rope
    cdef int i
    for i in range(e.n_ropes):
        table = &e.ropes[i]
        rope_row(&table.rope, table.long_factors if p.n_ctx > table.n_ctx_orig else table.freq_factors, p.n_past + t,
                 at + t * table.rope.n_rot)
        at += p.n_tokens * table.rope.n_rot


cdef void embed_run(void *state, Pass *p, int ith, int nth) noexcept nogil:
    cdef const Embed *e = <const Embed *>state
    cdef int64_t t, E = e.embd.n_in
    while True:
        t = team_claim(p.team, p.n_tokens)
        if t < 0:
            break
        e.embd.type.dequantize_row(<size_t>E, e.embd.w + <size_t>p.tokens[t] * e.embd.row_bytes, p.x + t * E)
        if e.scale != 1:
            p.isa.scale(<size_t>E, e.scale, p.x + t * E, p.x + t * E)
        rope_rows(e, p, t)
    team_barrier(p.team)


cdef class EmbedBlock(Block):
    """x = scale * rows of the token embedding; rope tables of the chunk's positions, one after the other in p.rope.

    token_embd : Weight (V, E)
    ropes : list of RopeConfig, up to MAX_ROPES
    """

    def __init__(self, *, Weight token_embd, list ropes, float scale=1.0):
        cdef Embed *e = <Embed *>calloc(1, sizeof(Embed))
        cdef RopeTable *table
        if e == NULL:
            raise MemoryError
        self.state = e
        self.run = embed_run
        self.keep = [token_embd, ropes]
        e.embd, e.scale = token_embd.linear, scale
        for rope in ropes[:MAX_ROPES]:
            table = &e.ropes[e.n_ropes]
            e.n_ropes += 1
            rope_init(&table.rope, rope)
            table.freq_factors = (<Vector?>rope.freq_factors).data if rope.freq_factors is not None else NULL
            table.long_factors = (<Vector?>rope.long_factors).data if rope.long_factors is not None else NULL
            table.n_ctx_orig = rope.n_ctx_orig

    def __dealloc__(self):
        free(self.state)


cdef struct Head:
    StreamNorm norm
    float softcap               # 0: none
    Linear output


cdef void cap_logits(const Head *h, Pass *p, int64_t n_out) noexcept nogil:
    """Units are stretches of a row: there may be one row only. Ends with a barrier."""
    cdef int64_t unit, n = n_out * h.output.n_rows
    while True:
        unit = team_claim(p.team, (n + CAP_CHUNK - 1) // CAP_CHUNK)
        if unit < 0:
            break
        p.isa.softcap(<size_t>min(CAP_CHUNK, n - unit * CAP_CHUNK), h.softcap, p.logits + unit * CAP_CHUNK,
                      p.logits + unit * CAP_CHUNK)
    team_barrier(p.team)


cdef void head_run(void *state, Pass *p, int ith, int nth) noexcept nogil:
    cdef const Head *h = <const Head *>state
    cdef int64_t t, first, n_out, E = h.output.n_in
    cdef int f = h.output.type.x_format
    cdef const uint8_t *x[1]
    cdef size_t stride[1]
    cdef float *out[1]
    if p.output == OUTPUT_NONE:
        return
    first = 0 if p.output == OUTPUT_ALL else p.n_tokens - 1
    n_out = p.n_tokens - first
    stride[0] = moe_x_row_bytes(p.isa, f, <size_t>E)
    while True:
        t = team_claim(p.team, n_out)
        if t < 0:
            break
        stream_norm_row(p.isa, &h.norm, E, p.x + (first + t) * E, p.norm + t * E)
        p.isa.x[f].quantize_row(<size_t>E, p.norm + t * E, p.xq[f] + <size_t>t * stride[0])
    team_barrier(p.team)
    x[0] = p.xq[f]
    out[0] = p.logits
    linear(p, &h.output, 1, x, stride, out, n_out)
    if h.softcap > 0:
        cap_logits(h, p, n_out)


cdef class HeadBlock(Block):
    """logits = scale * output(norm(x)) of the positions that the pass asks for. output (V, E), output_norm and norm_bias (E,).

    centred : bool     see StreamNorm
    softcap : float    c > 0: logits become c * tanh(logits / c)
    """

    def __init__(self, *, Vector output_norm, Weight output, float eps, float scale=1.0, norm_bias=None, float softcap=0,
                 bint centred=False):
        cdef Head *h = <Head *>calloc(1, sizeof(Head))
        if h == NULL:
            raise MemoryError
        self.state = h
        self.run = head_run
        self.keep = [output_norm, norm_bias, output]
        stream_norm_init(&h.norm, output_norm, norm_bias, eps, centred)
        h.softcap, h.output = softcap, output.linear
        h.output.scale = h.output.scale * scale

    def __dealloc__(self):
        free(self.state)
