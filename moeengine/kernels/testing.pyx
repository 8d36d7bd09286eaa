"""The row operations and attention of the active instruction set over NumPy arrays, for tests and benches.

A thin door to csrc/moe_table.h: shapes are checked, scratch is filled with NaN before use, results are
returned in new arrays.
"""
from libc.stdint cimport int32_t, uint16_t, uintptr_t
from libc.stdlib cimport free
from libc.string cimport memset
from posix.stdlib cimport posix_memalign

import numpy as np

from .table cimport (
    MOE_F16_POSITIONS, MOE_KV_SEGMENT, MOE_KV_TILE, checked_isa, moe_attn, moe_attn_partial_floats, moe_delta, moe_isa, moe_selective, moe_ssm,
    moe_weighted,
)

KV_TILE = MOE_KV_TILE
KV_SEGMENT = MOE_KV_SEGMENT
F16_POSITIONS = MOE_F16_POSITIONS


def self_check():
    """The self-check of the active instruction set: None where it passes or has none, else the name of a type whose
    products are wrong."""
    cdef const moe_isa *isa = checked_isa()
    cdef const char *wrong = isa.check() if isa.check != NULL else NULL
    return None if wrong == NULL else wrong.decode()


cdef inline const float *_in(const float[::1] x) noexcept:
    return &x[0] if x is not None and x.shape[0] else NULL


cdef inline float *_out(float[::1] x) noexcept:
    return &x[0] if x.shape[0] else NULL


def rms_norm(const float[::1] x, const float[::1] w, float eps):
    """x / rms(x) * w; w : None or float32 (n)."""
    y = np.empty(x.shape[0], np.float32)
    checked_isa().rms_norm(x.shape[0], _in(x), _in(w), eps, _out(y))
    return y


def layer_norm(const float[::1] x, const float[::1] w, float eps):
    """(x - mean(x)) / its rms * w; w : None or float32 (n)."""
    y = np.empty(x.shape[0], np.float32)
    checked_isa().layer_norm(x.shape[0], _in(x), _in(w), eps, _out(y))
    return y


def add(const float[::1] a, const float[::1] b):
    """a + b"""
    y = np.empty(a.shape[0], np.float32)
    checked_isa().add(a.shape[0], _in(a), _in(b), _out(y))
    return y


def mul(const float[::1] a, const float[::1] b):
    """a * b, value by value"""
    y = np.empty(a.shape[0], np.float32)
    checked_isa().mul(a.shape[0], _in(a), _in(b), _out(y))
    return y


def scale(float factor, const float[::1] x):
    """factor * x"""
    y = np.empty(x.shape[0], np.float32)
    checked_isa().scale(x.shape[0], factor, _in(x), _out(y))
    return y


def add_weighted(const float[::1] weight, const int32_t[::1] pair, int32_t n_used, const float[:, ::1] x, const float[:, ::1] y):
    """(y with row k of x times weight[pair[k]] added to row pair[k] // n_used, whether all of x is finite)"""
    cdef float[:, ::1] out = np.array(y)
    cdef moe_weighted a
    if any(not 0 <= p < min(weight.shape[0], y.shape[0] * n_used) for p in pair) or pair.shape[0] != x.shape[0]:
        raise ValueError("pair")
    memset(&a, 0, sizeof(a))
    a.n, a.n_rows, a.n_used = x.shape[1], x.shape[0], n_used
    a.x_stride = a.y_stride = x.shape[1]
    if x.size:
        a.pair, a.weight, a.x, a.y = &pair[0], &weight[0], &x[0, 0], &out[0, 0]
    else:
        a.n_rows = 0
    return np.asarray(out), bool(checked_isa().add_weighted(&a))


def silu_mul(const float[::1] gate, const float[::1] up):
    """silu(gate) * up"""
    y = np.empty(gate.shape[0], np.float32)
    checked_isa().silu_mul(gate.shape[0], _in(gate), _in(up), _out(y))
    return y


def relu_mul(const float[::1] gate, const float[::1] up):
    """max(gate, 0) * up"""
    y = np.empty(gate.shape[0], np.float32)
    checked_isa().relu_mul(gate.shape[0], _in(gate), _in(up), _out(y))
    return y


def gelu_mul(const float[::1] gate, const float[::1] up):
    """gelu(gate) * up, the tanh form; gate and gelu rounded to F16 within -10 .. 10"""
    y = np.empty(gate.shape[0], np.float32)
    checked_isa().gelu_mul(gate.shape[0], _in(gate), _in(up), _out(y))
    return y


def silu_bounded(const float[::1] gate, const float[::1] up, float bound):
    """min(silu(gate), bound) * up within -bound .. bound"""
    y = np.empty(gate.shape[0], np.float32)
    checked_isa().silu_bounded(gate.shape[0], _in(gate), _in(up), bound, _out(y))
    return y


def softcap(float cap, const float[::1] x):
    """cap * tanh(x / cap)"""
    y = np.empty(x.shape[0], np.float32)
    checked_isa().softcap(x.shape[0], cap, _in(x), _out(y))
    return y


def swiglu_oai(const float[::1] gate, const float[::1] up):
    """The clamped SwiGLU of gpt-oss: g * sigmoid(1.702 g) * (u + 1), g = min(gate, 7), u = up within -7 .. 7"""
    y = np.empty(gate.shape[0], np.float32)
    checked_isa().swiglu_oai(gate.shape[0], _in(gate), _in(up), _out(y))
    return y


def swiglu_clamp(const float[::1] gate, const float[::1] up, float bound):
    """silu(min(gate, bound)) * up within -bound .. bound"""
    y = np.empty(gate.shape[0], np.float32)
    checked_isa().swiglu_clamp(gate.shape[0], _in(gate), _in(up), bound, _out(y))
    return y


def sigmoid_mul(const float[::1] gate, const float[::1] x):
    """x / (1 + e^-gate)"""
    y = np.empty(gate.shape[0], np.float32)
    checked_isa().sigmoid_mul(gate.shape[0], _in(gate), _in(x), _out(y))
    return y


def conv_silu(const float[:, ::1] x, const float[:, ::1] w, const float[::1] bias=None):
    """silu of the sum of x[i] * w[i] over i and bias, the oldest row first; x, w : float32 (taps, C), bias : float32 (C,)."""
    if (x.shape[0] != w.shape[0] or x.shape[1] != w.shape[1] or not 1 <= x.shape[0] <= 16
            or bias is not None and bias.shape[0] != x.shape[1]):
        raise ValueError("x and w do not fit")
    y = np.empty(x.shape[1], np.float32)
    cdef const float *rows[16]
    cdef Py_ssize_t i
    if x.shape[1]:
        for i in range(x.shape[0]):
            rows[i] = &x[i, 0]
        checked_isa().conv_silu(x.shape[1], x.shape[0], rows, &w[0, 0], w.shape[1],
                                _in(bias), _out(y))
    return y


def conv_mul(const float[:, ::1] x, const float[:, ::1] w, const float[::1] gate):
    """gate times the sum of x[i] * w[i] over i; x, w : float32 (taps, C), gate : float32 (C,)."""
    if x.shape[0] != w.shape[0] or x.shape[1] != w.shape[1] or x.shape[1] != gate.shape[0] or not 1 <= x.shape[0] <= 16:
        raise ValueError("x, w and gate do not fit")
    y = np.empty(x.shape[1], np.float32)
    cdef const float *rows[16]
    cdef Py_ssize_t i
    if x.shape[1]:
        for i in range(x.shape[0]):
            rows[i] = &x[i, 0]
        checked_isa().conv_mul(x.shape[1], x.shape[0], rows, &w[0, 0], w.shape[1], &gate[0], _out(y))
    return y


def delta_rule(const float[:, ::1] state, const float[:, ::1] q, const float[:, ::1] k, const float[:, ::1] v,
               decay, const float[::1] beta, float scale):
    """A head of a gated delta rule: (results float32 (T, R), new state float32 (R, D)).

    state : float32 (R, D);  q, k : float32 (T, D);  v : float32 (T, R);  decay : float32 (T,) or (T, D);  beta : float32 (T,)
    """
    cdef const float[::1] decays = np.ascontiguousarray(decay, np.float32).reshape(-1)
    cdef bint by_element = np.ndim(decay) == 2
    cdef moe_delta d
    if (q.shape[0] != k.shape[0] or k.shape[0] != v.shape[0] or beta.shape[0] != v.shape[0]
            or decays.shape[0] != v.shape[0] * (k.shape[1] if by_element else 1)
            or q.shape[1] != state.shape[1] or k.shape[1] != state.shape[1] or v.shape[1] != state.shape[0]
            or min(q.shape[0], state.shape[0], state.shape[1]) < 1):
        raise ValueError("state, q, k, v, decay and beta do not fit")
    out, new = np.array(v), np.array(state)
    cdef float[:, ::1] out_view = out, new_view = new
    d.dim, d.n_rows, d.n_tokens, d.v_stride, d.scale = state.shape[1], state.shape[0], v.shape[0], v.shape[1], scale
    d.state, d.q, d.k, d.v, d.decay, d.beta = &new_view[0, 0], &q[0, 0], &k[0, 0], &out_view[0, 0], &decays[0], &beta[0]
    d.by_element = by_element
    checked_isa().delta_rule(&d)
    return out, new


def ssm_scan(const float[:, ::1] state, const float[:, ::1] b, const float[:, ::1] c, const float[:, ::1] x,
             const float[::1] decay, const float[::1] dt, float skip):
    """A head of a Mamba-2 layer: (results float32 (T, R), new state float32 (R, D)).

    state : float32 (R, D);  b, c : float32 (T, D);  x : float32 (T, R);  decay, dt : float32 (T,)
    """
    cdef moe_ssm m
    if (b.shape[0] != c.shape[0] or c.shape[0] != x.shape[0] or decay.shape[0] != x.shape[0] or dt.shape[0] != x.shape[0]
            or b.shape[1] != state.shape[1] or c.shape[1] != state.shape[1] or x.shape[1] != state.shape[0]
            or min(b.shape[0], state.shape[0], state.shape[1]) < 1):
        raise ValueError("state, b, c, x, decay and dt do not fit")
    out, new = np.array(x), np.array(state)
    cdef float[:, ::1] out_view = out, new_view = new
    m.dim, m.n_rows, m.n_tokens, m.x_stride, m.skip = state.shape[1], state.shape[0], x.shape[0], x.shape[1], skip
    m.state, m.b, m.c, m.x, m.decay, m.dt = &new_view[0, 0], &b[0, 0], &c[0, 0], &out_view[0, 0], &decay[0], &dt[0]
    checked_isa().ssm_scan(&m)
    return out, new


def selective_scan(const float[:, ::1] state, const float[:, ::1] a, const float[:, ::1] b, const float[:, ::1] c,
                   const float[:, ::1] x, const float[:, ::1] dt, const float[::1] skip):
    """Channels of a Mamba-1 layer: (results float32 (T, I), new state float32 (N, I)).

    state, a : float32 (N, I);  b, c : float32 (T, N);  x, dt : float32 (T, I);  skip : float32 (I,)
    """
    cdef moe_selective m
    N, I, T = state.shape[0], state.shape[1], x.shape[0]
    if (min(N, I, T) < 1 or (a.shape[0], a.shape[1]) != (N, I) or (b.shape[0], b.shape[1]) != (T, N) or skip.shape[0] != I
            or (c.shape[0], c.shape[1]) != (T, N) or x.shape[1] != I or (dt.shape[0], dt.shape[1]) != (T, I)):
        raise ValueError("state, a, b, c, x, dt and skip do not fit")
    out, new = np.array(x), np.array(state)
    cdef float[:, ::1] out_view = out, new_view = new
    m.dim, m.n_channels, m.n_tokens, m.row_stride, m.b_stride, m.x_stride = N, I, T, I, N, I
    m.state, m.a, m.b, m.c, m.x, m.dt, m.skip = &new_view[0, 0], &a[0, 0], &b[0, 0], &c[0, 0], &out_view[0, 0], &dt[0, 0], &skip[0]
    checked_isa().selective_scan(&m)
    return out, new


def rope(const float[::1] x, const float[:, ::1] cs, bint neox):
    """x with its first 2 * len(cs) values rotated; cs : float32 (n_rot/2, 2), cosine and sine."""
    y = np.array(x)
    if 2 * cs.shape[0] > x.shape[0] or cs.shape[1] != 2:
        raise ValueError(f"cs: found {cs.shape[0]}, {cs.shape[1]} for {x.shape[0]} values")
    if cs.shape[0]:
        checked_isa().rope(2 * cs.shape[0], &cs[0, 0], neox, _out(y))
    return y


def f32_to_f16(const float[::1] x):
    """uint16 bits of x as F16"""
    y = np.empty(x.shape[0], np.uint16)
    cdef uint16_t[::1] h = y
    if x.shape[0]:
        checked_isa().f32_to_f16(x.shape[0], &x[0], &h[0])
    return y


def f16_to_f32(const uint16_t[::1] x):
    """float32 values of the F16 bits x"""
    y = np.empty(x.shape[0], np.float32)
    if x.shape[0]:
        checked_isa().f16_to_f32(x.shape[0], &x[0], _out(y))
    return y


def softmax(const float[::1] x):
    """The softmax of x, or None where the kernel reports that there is none."""
    y = np.array(x)
    return y if checked_isa().softmax(x.shape[0], _out(y)) else None


def k_store(const float[:, ::1] k, size_t pos, uint16_t[:, :, ::1] tiles):
    """Write rows k (T, D) as positions pos .. pos+T-1 of tiles, uint16 (n_tiles, D, KV_TILE)."""
    if k.shape[0] == 0 or k.shape[1] != tiles.shape[1] or tiles.shape[2] != MOE_KV_TILE:
        raise ValueError("k and tiles do not fit")
    if pos + <size_t>k.shape[0] > <size_t>(tiles.shape[0] * MOE_KV_TILE):
        raise ValueError("positions past the last tile")
    checked_isa().k_store(k.shape[0], k.shape[1], pos, &k[0, 0], k.shape[1], &tiles[0, 0, 0],
                          k.shape[1] * MOE_KV_TILE)


def attention(const float[:, ::1] q, const uint16_t[:, :, ::1] k, const uint16_t[:, ::1] v, const int32_t[::1] n_kv,
              float scale, *, const int32_t[::1] kv_begin=None, float softcap=0, const float[::1] sink=None,
              bint split=False, bint f16=False, Py_ssize_t dim_v=0, bint ring=False):
    """Attention of the rows q over one KV head.

    Parameters
    ----------
    q : float32 (Q, D)
    k : uint16 (n_tiles, D, KV_TILE)    as k_store writes it
    v : uint16 (P, DV)                  F16 bits; None: the first dim_v elements of the keys
    n_kv, kv_begin : int32 (Q)          row i sees kv_begin[i] .. n_kv[i]-1; kv_begin None: from 0
    sink : float32 (Q) or None
    split : bool                        segment by segment, last one first, then merged
    f16 : bool                          attention_f16; n_kv at most F16_POSITIONS
    ring : bool                         a tile has the place of its number modulo the number of tiles

    Returns
    -------
    float32 (Q, DV)
    """
    cdef const moe_isa *isa = checked_isa()
    cdef Py_ssize_t i, n_q = q.shape[0]
    cdef size_t segment, n_segments
    cdef Py_ssize_t n_keys = k.shape[0] * MOE_KV_TILE
    if v is not None:
        n_keys, dim_v = min(n_keys, v.shape[0]), v.shape[1]
    elif dim_v > q.shape[1]:
        raise ValueError("dim_v is too large")
    if min(n_q, q.shape[1], dim_v) < 1 or k.shape[1] != q.shape[1] or k.shape[2] != MOE_KV_TILE:
        raise ValueError("q, k and v do not fit")
    if f16 and np.max(n_kv) > MOE_F16_POSITIONS:
        raise ValueError("n_kv is too large")
    if n_kv.shape[0] != n_q or np.min(n_kv) < 1 or (np.max(n_kv) > n_keys and not ring):
        raise ValueError("n_kv does not fit")
    if (kv_begin is not None and kv_begin.shape[0] != n_q) or (sink is not None and sink.shape[0] != n_q):
        raise ValueError("kv_begin or sink does not fit")
    out = np.empty((n_q, dim_v), np.float32)
    cdef float[:, ::1] out_view = out
    pointers = np.empty((2, n_q), np.uintp)
    cdef uintptr_t[:, ::1] rows = pointers
    for i in range(n_q):
        rows[0, i] = <uintptr_t><void *>&q[i, 0]
        rows[1, i] = <uintptr_t><void *>&out_view[i, 0]
    cdef moe_attn a
    memset(&a, 0, sizeof(a))
    a.head_dim_k, a.head_dim_v, a.n_q = q.shape[1], dim_v, n_q
    a.q, a.out = <const float *const *>&rows[0, 0], <float *const *>&rows[1, 0]
    a.n_kv = &n_kv[0]
    if kv_begin is not None:
        a.kv_begin = &kv_begin[0]
    a.k, a.k_tile_stride = &k[0, 0, 0], q.shape[1] * MOE_KV_TILE
    a.v_tile_stride = dim_v * MOE_KV_TILE
    if v is not None:
        a.v = &v[0, 0]
    a.n_tiles = k.shape[0] if ring else 0
    a.scale, a.softcap, a.sink = scale, softcap, _in(sink)
    cdef size_t scratch_bytes = isa.attn_scratch_bytes(n_q, a.head_dim_k, a.head_dim_v)
    cdef size_t segment_floats = n_q * moe_attn_partial_floats(a.head_dim_v)
    n_segments = (np.max(n_kv) + MOE_KV_SEGMENT - 1) // MOE_KV_SEGMENT if split else 0
    cdef size_t n_bytes = scratch_bytes + 64 + n_segments * segment_floats * sizeof(float)
    cdef char *memory = NULL
    if posix_memalign(<void **>&memory, 64, n_bytes):
        raise MemoryError(f"{n_bytes} bytes of scratch")
    memset(memory, 0xff, n_bytes)      # NaN, should a value be used before it was written
    a.scratch = memory
    cdef float *partial = <float *>(memory + (scratch_bytes + 63) // 64 * 64)
    with nogil:
        if split:
            for segment in range(n_segments, 0, -1):
                isa.attention_segment(&a, segment - 1, partial + (segment - 1) * segment_floats)
            isa.attention_merge(&a, n_segments, partial, segment_floats)
        elif f16:
            isa.attention_f16(&a)
        else:
            isa.attention(&a)
    free(memory)
    return out
