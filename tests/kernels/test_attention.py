"""Attention: close to float64 NumPy, and the same bytes for a row alone or among others, in one go or
by segments, on every instruction set."""

import numpy as np
import pytest

from moeengine.kernels import testing as ops

from .isas import ISAS, assert_same_bytes, forced, on_every_isa

TILE, SEGMENT = ops.KV_TILE, ops.KV_SEGMENT
MANY = 40  # rows: enough for whole blocks and for tiles that are converted first


class Case:
    """Random rows over one KV head. Everything that no row sees is NaN: tile tails, keys before kv_begin."""

    def __init__(self, n_q, n_ctx, dim_k, dim_v, *, n_kv=None, kv_begin=None, sink=False, softcap=0.0, seed=0,
                 in_keys=False):
        rng = np.random.default_rng([n_q, n_ctx, dim_k, dim_v, seed])
        self.q = (rng.standard_normal((n_q, dim_k)) * 2).astype(np.float32)
        self.n_kv = np.array(rng.integers(1, n_ctx + 1, n_q) if n_kv is None else n_kv, np.int32)
        self.kv_begin = None if kv_begin is None else np.array(kv_begin, np.int32)
        self.sink = rng.standard_normal(n_q).astype(np.float32) * 2 if sink else None
        self.softcap, self.scale = softcap, dim_k**-0.5
        first = 0 if kv_begin is None else self.kv_begin.min()
        keys = rng.standard_normal((n_ctx, dim_k)).astype(np.float32)
        values = rng.standard_normal((n_ctx, dim_v)).astype(np.float32)
        if in_keys:
            values = keys[:, :dim_v].copy()
        self.in_keys, self.dim_v = in_keys, dim_v
        keys[:first] = keys[self.n_kv.max() :] = np.nan
        values[:first] = values[self.n_kv.max() :] = np.nan
        self.values = values.astype(np.float16)
        self.keys = keys.astype(np.float16)
        self.tiles = np.full((-(-n_ctx // TILE), dim_k, TILE), 0xFFFF, np.uint16)
        ops.k_store(keys, 0, self.tiles)
        self.ring = False

    def __call__(self, rows=slice(None), split=False, f16=False):
        pick = lambda x: None if x is None else np.ascontiguousarray(x[rows])  # noqa: E731
        return ops.attention(
            pick(self.q),
            self.tiles,
            None if self.in_keys else self.values.view(np.uint16),
            pick(self.n_kv),
            self.scale,
            kv_begin=pick(self.kv_begin),
            softcap=self.softcap,
            sink=pick(self.sink),
            split=split,
            f16=f16,
            dim_v=self.dim_v,
            ring=self.ring,
        )

    def make_ring(self):
        """Keep the tiles that are seen only, each in the place of its number modulo how many they are."""
        seen = np.arange(self.kv_begin.min() // TILE, -(-self.n_kv.max() // TILE))
        tiles, values = np.empty_like(self.tiles[seen]), np.full((len(seen), TILE, self.dim_v), np.nan, np.float16)
        for i in seen:
            tiles[i % len(seen)] = self.tiles[i]
            rows = self.values[i * TILE : (i + 1) * TILE]
            values[i % len(seen), : len(rows)] = rows
        self.tiles, self.values, self.ring = tiles, values.reshape(-1, self.dim_v), True

    def tolerance(self):
        """For values near 1 and scores up to 10, each a float32 sum of dim_k products."""
        return 1e-6 + 1e-8 * self.q.shape[1]

    def expected(self):
        """float64 (Q, DV)"""
        out = []
        for i, q in enumerate(self.q.astype(np.float64)):
            seen = slice(0 if self.kv_begin is None else self.kv_begin[i], self.n_kv[i])
            score = self.keys[seen].astype(np.float64) @ q * np.float32(self.scale)
            if self.softcap:
                score = self.softcap * np.tanh(score / self.softcap)
            top = max(score.max(), -np.inf if self.sink is None else self.sink[i])
            weight = np.exp(score - top)
            total = weight.sum() + (0 if self.sink is None else np.exp(self.sink[i].astype(np.float64) - top))
            out.append(weight @ self.values[seen].astype(np.float64) / total)
        return np.array(out)


CASES = {
    "one": dict(n_q=1, n_ctx=1, dim_k=64, dim_v=64),
    "decode": dict(n_q=8, n_ctx=700, dim_k=128, dim_v=128, n_kv=[700] * 8),
    "decode_one_head": dict(n_q=1, n_ctx=1100, dim_k=128, dim_v=128, n_kv=[1100]),
    "decode_few_heads": dict(n_q=3, n_ctx=130, dim_k=64, dim_v=64, n_kv=[130] * 3),
    "prefill": dict(n_q=MANY, n_ctx=600, dim_k=64, dim_v=64, n_kv=range(561, 601)),
    "prefill_from_start": dict(n_q=70, n_ctx=70, dim_k=80, dim_v=80, n_kv=range(1, 71)),
    "groups_of_5": dict(n_q=MANY, n_ctx=530, dim_k=96, dim_v=96, n_kv=[523 + i // 5 for i in range(MANY)]),
    "ragged": dict(n_q=MANY, n_ctx=1500, dim_k=32, dim_v=32),
    "dim_256": dict(n_q=9, n_ctx=100, dim_k=256, dim_v=256),
    "dim_576_512": dict(n_q=17, n_ctx=90, dim_k=576, dim_v=512),
    "values_in_keys": dict(n_q=17, n_ctx=90, dim_k=576, dim_v=512, in_keys=True),
    "values_in_keys_many": dict(n_q=MANY, n_ctx=600, dim_k=48, dim_v=40, n_kv=range(561, 601), in_keys=True),
    "values_in_keys_window": dict(n_q=3, n_ctx=300, dim_k=20, dim_v=20, n_kv=[140, 270, 300], kv_begin=[70, 72, 299], in_keys=True),
    "dim_192_128": dict(n_q=7, n_ctx=90, dim_k=192, dim_v=128),
    "odd_dims": dict(n_q=11, n_ctx=77, dim_k=13, dim_v=37),
    "dim_1": dict(n_q=2, n_ctx=65, dim_k=1, dim_v=1),
    "odd_dims_many": dict(n_q=MANY, n_ctx=77, dim_k=40, dim_v=88),
    "window": dict(
        n_q=MANY, n_ctx=1200, dim_k=64, dim_v=64, n_kv=range(1161, 1201), kv_begin=range(1161 - 128, 1201 - 128)
    ),
    "windows_apart": dict(
        n_q=MANY, n_ctx=1700, dim_k=32, dim_v=32, n_kv=range(100, 1700, 40), kv_begin=range(90, 1690, 40)
    ),
    "more_than_a_chunk": dict(n_q=530, n_ctx=600, dim_k=8, dim_v=8, n_kv=range(71, 601), sink=True),
    "sink": dict(n_q=16, n_ctx=600, dim_k=64, dim_v=64, sink=True),
    "softcap": dict(n_q=16, n_ctx=600, dim_k=64, dim_v=64, softcap=3.0, sink=True),
}


@pytest.fixture(params=CASES)
def case(request):
    return Case(**CASES[request.param])


def test_close_to_float64_on_every_isa(case):
    got = on_every_isa(case)
    assert np.abs(got - case.expected()).max() < case.tolerance()


@pytest.mark.parametrize("isa", ISAS)
def test_a_row_does_not_depend_on_the_others(isa, case):
    with forced(isa):
        together = case()
        n = len(together)
        for i in range(0, n, 1 + n // MANY):
            assert_same_bytes(case([i]), together[[i]])
        for rows in ([*range(n - 1, -1, -1)], [*range(0, n, 2)], [n // 2, 0, n - 1]):
            assert_same_bytes(case(rows), together[rows])


@pytest.mark.parametrize("isa", ISAS)
def test_segments_computed_apart_give_the_same_bytes(isa, case):
    with forced(isa):
        assert_same_bytes(case(split=True), case())
        assert_same_bytes(case([0], split=True), case()[[0]])


@pytest.mark.parametrize("n_q", [1, 5, 9, MANY])
@pytest.mark.parametrize("dim_k, dim_v", [(576, 512), (40, 24), (21, 21), (16, 1)])
def test_values_in_keys_are_what_they_are_apart(n_q, dim_k, dim_v):
    case = Case(n_q, ops.F16_POSITIONS, dim_k, dim_v, in_keys=True)
    whole, f16 = on_every_isa(case), on_every_isa(lambda: case(f16=True))
    case.in_keys = False
    assert_same_bytes(on_every_isa(case), whole)
    assert_same_bytes(on_every_isa(lambda: case(f16=True)), f16)


@pytest.mark.parametrize("n_q", [1, 5, MANY])
@pytest.mark.parametrize("in_keys", [False, True])
@pytest.mark.parametrize("f16", [False, True])
def test_tiles_in_a_ring_give_the_same_bytes(n_q, in_keys, f16):
    last = ops.F16_POSITIONS if f16 else 1600
    n_kv = np.linspace(last - (10 if f16 else 60), last, n_q).astype(int)
    case = Case(n_q, last, 48, 40, n_kv=n_kv, kv_begin=n_kv - (30 if f16 else 700), in_keys=in_keys)
    want, split = on_every_isa(lambda: case(f16=f16)), on_every_isa(lambda: case(split=True))
    n_tiles = len(case.tiles)
    case.make_ring()
    assert len(case.tiles) < n_tiles
    assert_same_bytes(on_every_isa(lambda: case(f16=f16)), want)
    assert_same_bytes(on_every_isa(lambda: case(split=True)), split)


def test_split_case_has_several_segments():
    assert max(c["n_ctx"] for c in CASES.values()) > 3 * SEGMENT


@pytest.mark.parametrize("n_q", range(1, 34))
def test_every_number_of_rows(n_q):
    case = Case(n_q, 90, 24, 40)
    assert np.abs(on_every_isa(case) - case.expected()).max() < case.tolerance()


def f16_reference(case, i):
    """Row i as attention_f16.h describes it, for dimensions that are a multiple of 64."""
    f32, f16 = np.float32, np.float16
    fma = lambda a, b, c: f32(np.float64(a) * np.float64(b) + np.float64(c))  # noqa: E731
    q = case.q[i].astype(f16).astype(f32)
    native = np.arange(case.values.shape[1]) < case.values.shape[1] // 128 * 128
    best, total, out = f32(-np.inf), f32(0), np.zeros(case.values.shape[1], f32)
    seen = slice(0 if case.kv_begin is None else case.kv_begin[i], case.n_kv[i])
    for key, value in zip(case.keys[seen].astype(f32), case.values[seen].astype(f32)):
        strands = np.zeros(64, f32)
        for d in range(0, len(q), 64):
            strands = fma(key[d : d + 64], q[d : d + 64], strands)
        while len(strands) > 1:
            strands = strands[: len(strands) // 2] + strands[len(strands) // 2 :]
        score, shrink, weight = strands[0] * f32(case.scale), f32(1), f32(1)
        if score > best:
            shrink, best = f32(np.exp(np.float64(best - score))), score
        else:
            weight = f32(np.exp(np.float64(score - best)))
        m, w = (np.where(native, f32(f16(x)), x) for x in (shrink, weight))
        if shrink != 1:
            out = (out * m).astype(f16).astype(f32)
        exact = value.astype(np.float64) * w + out
        out = np.where(native, exact, exact.astype(f32)).astype(f16).astype(f32)
        total = fma(total, shrink, weight)
    if case.sink is not None:
        if case.sink[i] > best:
            shrink = f32(np.exp(np.float64(best - case.sink[i])))
            out, total = out * shrink, fma(total, shrink, f32(1))
        else:
            total += f32(np.exp(np.float64(case.sink[i] - best)))
    return out * (f32(1) / total)


F16_CASES = {
    "plain": {}, "sink": {"sink": True}, "window": {"n_kv": range(70, 76), "kv_begin": range(30, 36)},
    "windows": {"n_kv": [1, 65, 70, 128, 90, 128], "kv_begin": [0, 64, 3, 127, 71, 60], "sink": True},
}  # fmt: skip


@pytest.mark.parametrize("dim", [64, 128, 192, 256])
@pytest.mark.parametrize("options", F16_CASES.values(), ids=F16_CASES)
def test_f16_rounding(dim, options):
    case = Case(6, ops.F16_POSITIONS, dim, dim, seed=dim, **options)
    got = on_every_isa(lambda: case(f16=True))
    want = np.array([f16_reference(case, i) for i in range(6)])
    for i in range(6):
        assert_same_bytes(on_every_isa(lambda: case([i], f16=True)), got[[i]])
    # exp of the C library is now and then one off the nearest: that can move a value by one F16 step
    assert (got == want).mean() > 0.9 and np.abs(got - want).max() < 2.0**-10


@pytest.mark.parametrize("dim_k, dim_v", [(64, 64), (128, 128), (80, 80), (24, 40), (1, 1), (200, 136), (192, 128)])
def test_f16_rows_alone_and_among_others(dim_k, dim_v):
    case = Case(9, ops.F16_POSITIONS, dim_k, dim_v)
    case.values[100, 0] = np.inf
    together = on_every_isa(lambda: case(f16=True))
    for i in range(9):
        assert_same_bytes(on_every_isa(lambda: case(slice(i, i + 1), f16=True)), together[i : i + 1])
    finite = case.n_kv <= 100
    assert np.abs(together[finite] - case.expected()[finite]).max() < 0.02


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_bad_values_reach_only_the_rows_that_see_them(bad):
    case = Case(MANY, 100, 32, 32, n_kv=range(61, 101))
    clean = on_every_isa(case)
    case.values[70] = bad
    got = on_every_isa(case)
    assert_same_bytes(got[:10], clean[:10])
    assert not np.isfinite(got[10:]).any()


def test_huge_scores_stay_finite():
    case = Case(4, 200, 64, 64, n_kv=[200] * 4)
    case.q *= np.float32(1e4)
    got = on_every_isa(case)
    assert np.isfinite(got).all()
    assert np.abs(got - case.expected()).max() < 0.05  # nearly one-hot: the scores are only good to 2^-24 of 1e5


def test_k_store_writes_its_positions_only():
    rng = np.random.default_rng(3)
    for dim, pos, n in ((64, 0, 1), (128, 63, 2), (37, 5, 200), (16, 64, 64)):
        k = rng.standard_normal((n, dim)).astype(np.float32)

        def store():
            tiles = np.full((4, dim, TILE), 0xABCD, np.uint16)
            ops.k_store(k, pos, tiles)
            return tiles

        got = on_every_isa(store).transpose(0, 2, 1).reshape(4 * TILE, dim)
        assert np.array_equal(got[pos : pos + n], k.astype(np.float16).view(np.uint16))
        assert (got[:pos] == 0xABCD).all() and (got[pos + n :] == 0xABCD).all()


def f16_case(n_q, n_ctx, dim, spread, keys=0.0, seed=0):
    rng = np.random.default_rng([n_q, n_ctx, dim, seed])
    q = rng.standard_normal((n_q, dim)).astype(np.float32)
    tiles = np.full((-(-n_ctx // TILE), dim, TILE), 0xFFFF, np.uint16)
    ops.k_store((rng.standard_normal((n_ctx, dim)) * keys).astype(np.float32), 0, tiles)
    values = (rng.standard_normal((n_ctx, dim)) * 2.0 ** rng.uniform(*spread, (n_ctx, dim))).astype(np.float16)
    n_kv = rng.integers(1, n_ctx + 1, n_q).astype(np.int32)
    got = on_every_isa(lambda: ops.attention(q, tiles, values.view(np.uint16), n_kv, dim**-0.5, f16=True))
    return values, n_kv, got


@pytest.mark.parametrize("spread", [(0, 0), (-12, 0), (-26, -10), (8, 14)])
@pytest.mark.parametrize("dim", [16, 64, 128, 144, 256])
def test_f16_sums_round_every_step_once(dim, spread):
    """Keys of 0 make every weight 1, so that the sum is one of F16 values, with many ties and subnormals."""
    values, n_kv, got = f16_case(12, 128, dim, spread)
    for row, n in zip(got, n_kv):
        total = np.zeros(dim, np.float16)
        for v in values[:n]:
            with np.errstate(over="ignore"):
                total = (total.astype(np.float64) + v.astype(np.float64)).astype(np.float16)
        assert_same_bytes(row, total.astype(np.float32) * (np.float32(1) / np.float32(n)))


@pytest.mark.parametrize("dim", [16, 80, 128, 192])
def test_f16_is_attention_with_more_rounding(dim):
    values, n_kv, got = f16_case(12, 128, dim, (0, 0), keys=1.0)
    assert np.isfinite(got).all() and got.shape == (12, dim)
    assert np.abs(got).max() < np.abs(values.astype(np.float32)).max()
    f16_case(12, 128, dim, (-20, 0), keys=8.0)  # new maxima, weights of 0: the same bytes everywhere
