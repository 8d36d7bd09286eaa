"""The expert loop: grouping, order, inactive slots, what is read, where a supply takes part."""

import ctypes
import mmap

import gguf
import numpy as np
import pytest

from moeengine import kernels
from moeengine.errors import ConfigError, SupplyError
from moeengine.kernels.mul_mat_id import build_plan, callable_hooks

from .blocks import TYPES, random_raw

N_IN, N_ROWS, N_EXPERT = 512, 70, 9


def case(name="Q4_K", n_tokens=20, n_slots=3, seed=0):
    """raw (X, R, bytes), x (T, C), ids (T, A) with repeated and unused experts."""
    rng = np.random.default_rng(seed)
    raw = random_raw(rng, name, (N_EXPERT, N_ROWS), N_IN)
    x = rng.standard_normal((n_tokens, N_IN), np.float32)
    ids = rng.choice([0, 2, 3, 5, 8], (n_tokens, n_slots)).astype(np.int32)
    return raw, x, ids


def one_by_one(raw, name, x, ids):
    """float32 (T, A, R): each slot as a product of its own."""
    out = np.zeros((*ids.shape, raw.shape[1]), np.float32)
    for t, s in np.argwhere(ids >= 0):
        row = x[t] if x.ndim == 2 else x[t, s]
        out[t, s] = kernels.mul_mat(raw[ids[t, s]], name, row[None], 1)[0]
    return out


@pytest.mark.parametrize("name", TYPES)
def test_equals_one_product_a_slot(name):
    raw, x, ids = case(name)
    ids[::4, 1] = -1
    want = one_by_one(raw, name, x, ids)
    assert np.any(want)
    for n_threads in (1, 2, 5, None):
        np.testing.assert_array_equal(kernels.mul_mat_id(raw, name, x, ids, n_threads), want)
    for t in range(0, 20, 7):  # any split of the tokens
        np.testing.assert_array_equal(
            kernels.mul_mat_id(raw, name, x[t : t + 7], ids[t : t + 7]), want[t : t + 7]
        )


def test_activation_row_a_slot():
    raw, _, ids = case()
    x = np.random.default_rng(1).standard_normal((*ids.shape, N_IN), np.float32)
    np.testing.assert_array_equal(
        kernels.mul_mat_id(raw, "Q4_K", x, ids), one_by_one(raw, "Q4_K", x, ids)
    )
    np.testing.assert_array_equal(
        kernels.mul_mat_id(raw, gguf.GGMLQuantizationType.Q4_K, x, ids),
        one_by_one(raw, "Q4_K", x, ids),
    )


def test_same_expert_twice_in_one_token():
    raw, x, ids = case(n_tokens=4)
    ids[:] = 5
    got = kernels.mul_mat_id(raw, "Q4_K", x, ids)
    np.testing.assert_array_equal(got[:, 0], got[:, 2])
    np.testing.assert_array_equal(got, one_by_one(raw, "Q4_K", x, ids))


def test_inactive_slots_are_zero():
    raw, x, ids = case()
    ids[3:9] = -1
    got = kernels.mul_mat_id(raw, "Q4_K", x, ids)
    assert not got[3:9].any() and np.all(got[:3].any(-1))
    assert not kernels.mul_mat_id(raw, "Q4_K", x, np.full_like(ids, -1)).any()


@pytest.mark.parametrize("wrong", [-2, N_EXPERT, 2**31 - 1, -(2**31)])
def test_id_out_of_range_is_refused_before_anything_is_read(wrong):
    raw, x, ids = case()
    ids[7, 1] = wrong
    seen = []
    hooks = callable_hooks(advise=seen.append, ready=seen.append, release=seen.append)
    with pytest.raises(ConfigError, match=rf"ids\[7, 1\].*{wrong}.*0 to 8"):
        kernels.mul_mat_id(raw, "Q4_K", x, ids, hooks=hooks)
    assert not seen


def test_bad_shapes():
    raw, x, ids = case()
    bad_x = (
        x[:5],
        x[:, :256],
        x[None],
        x.astype(np.float64),
        np.zeros((20, 2, N_IN), np.float32),
        x[0],
    )
    for bad in bad_x:
        with pytest.raises(ConfigError, match="^x: "):
            kernels.mul_mat_id(raw, "Q4_K", bad, ids)
    for bad in (ids.astype(np.int64), ids[0], ids.tolist(), ids.astype(np.float32)):
        with pytest.raises(ConfigError, match="^ids: "):
            kernels.mul_mat_id(raw, "Q4_K", x, bad)
    for bad in (raw[0], raw[..., 1:], raw.astype(np.int8), raw[..., ::2]):
        with pytest.raises(ConfigError, match="^raw: "):
            kernels.mul_mat_id(bad, "Q4_K", x, ids)


def test_nothing_to_do():
    raw, x, ids = case()
    assert kernels.mul_mat_id(raw, "Q4_K", x[:0], ids[:0]).shape == (0, 3, N_ROWS)
    assert kernels.mul_mat_id(raw, "Q4_K", x, ids[:, :0]).shape == (20, 0, N_ROWS)
    assert kernels.mul_mat_id(raw[:, :0], "Q4_K", x, ids).shape == (20, 3, 0)
    none = np.full_like(ids, -1)
    assert not kernels.mul_mat_id(raw[:0], "Q4_K", x, none).any()
    with pytest.raises(ConfigError):
        kernels.mul_mat_id(raw[:0], "Q4_K", x, ids)
    assert not kernels.mul_mat_id(raw[..., :0], "Q4_K", x[:, :0], ids).any()


def test_strided_bank_is_read_in_place():
    raw, x, ids = case()
    np.testing.assert_array_equal(
        kernels.mul_mat_id(raw[:, ::2], "Q4_K", x, ids),
        kernels.mul_mat_id(raw, "Q4_K", x, ids)[..., ::2],
    )
    np.testing.assert_array_equal(
        kernels.mul_mat_id(raw[::2], "Q4_K", x, ids // 2),
        kernels.mul_mat_id(raw, "Q4_K", x, ids // 2 * 2),
    )


@pytest.mark.parametrize("n_threads", [1, 2, 4])
def test_hooks_see_the_used_experts_in_ascending_order(n_threads):
    raw, x, ids = case()
    used = sorted(set(ids.ravel().tolist()))
    assert len(used) == 5
    log = []
    hooks = callable_hooks(
        advise=lambda ie: log.append(("advise", ie)),
        ready=lambda ie: log.append(("ready", ie)),
        release=lambda ie: log.append(("release", ie)),
        n_ahead=2,
        n_behind=1,
    )
    got = kernels.mul_mat_id(raw, "Q4_K", x, ids, n_threads, hooks=hooks)
    np.testing.assert_array_equal(got, kernels.mul_mat_id(raw, "Q4_K", x, ids))
    assert [ie for what, ie in log if what == "advise"] == used
    assert [ie for what, ie in log if what == "release"] == used
    ready = [ie for what, ie in log if what == "ready"]
    assert ready == sorted(ready) and set(ready) == set(used)
    for i, ie in enumerate(used):
        last_ready = len(log) - 1 - log[::-1].index(("ready", ie))
        released = log.index(("release", ie))
        assert released > last_ready
        if n_threads > 1:  # the other members do not wait for the one that advises and releases
            continue
        if i + 2 < len(used):
            first_of_next = log.index(("ready", used[i + 1]))
            assert first_of_next < released < log.index(("ready", used[i + 2]))
        assert log.index(("advise", ie)) < log.index(("ready", used[max(0, i - 2)]))


@pytest.mark.parametrize("n_ahead, n_behind", [(0, 0), (1, 0), (0, 3), (9, 9)])
def test_hooks_at_any_distance(n_ahead, n_behind):
    raw, x, ids = case()
    advised, released = [], []
    hooks = callable_hooks(
        advise=advised.append, release=released.append, n_ahead=n_ahead, n_behind=n_behind
    )
    got = kernels.mul_mat_id(raw, "Q4_K", x, ids, hooks=hooks)
    np.testing.assert_array_equal(got, one_by_one(raw, "Q4_K", x, ids))
    assert advised == released == [0, 2, 3, 5, 8]


def test_bytes_that_cannot_be_had():
    raw, x, ids = case()
    hooks = callable_hooks(ready=lambda ie: ie != 3)
    with pytest.raises(SupplyError, match="expert 3"):
        kernels.mul_mat_id(raw, "Q4_K", x, ids, hooks=hooks)

    def broken(ie):
        raise KeyError("lost")

    with pytest.raises(KeyError, match="lost"):
        kernels.mul_mat_id(raw, "Q4_K", x, ids, hooks=callable_hooks(advise=broken))


def resident(array):
    """bool, one a page of the mapping that `array` covers from its start."""
    libc = ctypes.CDLL(None, use_errno=True)
    pages = (ctypes.c_ubyte * (-(-array.nbytes // mmap.PAGESIZE)))()
    done = libc.mincore(ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes), pages)
    assert done == 0
    return np.frombuffer(pages, np.uint8) & 1 == 1


def test_only_used_experts_are_touched():
    """An anonymous mapping gets a page at its first read: experts of exactly four pages."""
    page = mmap.PAGESIZE
    n_rows, n_in = 4 * page // 34 // 4, 128  # Q8_0: 4 blocks a row
    stride = 4 * page
    memory = mmap.mmap(-1, 8 * stride)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    flat = np.frombuffer(memory, np.uint8)
    raw = np.lib.stride_tricks.as_strided(flat, (8, n_rows, 4 * 34), (stride, 4 * 34, 1))
    assert not resident(flat).any()
    ids = np.array([[6, -1], [1, 6], [-1, 4]], np.int32)
    out = kernels.mul_mat_id(raw, "Q8_0", np.ones((3, n_in), np.float32), ids)
    assert out.shape == (3, 2, n_rows)
    touched = resident(flat).reshape(8, 4)
    assert touched[[1, 4, 6]].all() and not touched[[0, 2, 3, 5, 7]].any()


def test_only_used_experts_are_touched_in_a_file(tmp_path):
    """The same on a file mapping with read-ahead off, by what this process has mapped."""
    page, n_in = mmap.PAGESIZE, 128
    n_rows, stride = 4 * page // 136, 4 * page
    path = tmp_path / "bank"
    path.write_bytes(bytes(8 * stride))
    with path.open("rb") as file:
        memory = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    memory.madvise(mmap.MADV_RANDOM)
    flat = np.frombuffer(memory, np.uint8)
    raw = np.lib.stride_tricks.as_strided(flat, (8, n_rows, 136), (stride, 136, 1), writeable=False)
    for bad in (-2, 8):
        with pytest.raises(ConfigError):
            kernels.mul_mat_id(
                raw, "Q8_0", np.ones((1, n_in), np.float32), np.array([[1, bad]], np.int32)
            )
    kernels.mul_mat_id(raw, "Q8_0", np.ones((1, n_in), np.float32), np.array([[-1, -1]], np.int32))
    assert referenced_bytes(flat) == 0
    kernels.mul_mat_id(raw, "Q8_0", np.ones((1, n_in), np.float32), np.array([[5, -1]], np.int32))
    assert 0 < referenced_bytes(flat) < 8 * stride


def referenced_bytes(array):
    """Rss of the mapping that starts at `array`, from /proc/self/smaps."""
    wanted = f"{array.ctypes.data:x}-"
    with open("/proc/self/smaps") as lines:
        for line in lines:
            if line.startswith(wanted):
                for field in lines:
                    if field.startswith("Rss:"):
                        return int(field.split()[1]) * 1024
    raise AssertionError("mapping not found")


def test_plan():
    ids = np.array([4, 2, -1, 7, 2, 4, 0, 9, 2], np.int32)
    expert, start, pair = build_plan(ids, 0, 8)
    assert expert.tolist() == [0, 2, 4, 7]
    assert start.tolist() == [0, 1, 4, 6, 7]
    assert pair.tolist() == [6, 1, 4, 8, 0, 5, 3]
    expert, start, pair = build_plan(ids, 4, 4)  # a later tier: local ids, others left out
    assert expert.tolist() == [0, 3] and start.tolist() == [0, 2, 3] and pair.tolist() == [0, 5, 3]
    expert, start, pair = build_plan(ids, 2**31 - 1, 3)
    assert expert.tolist() == [] and start.tolist() == [0] and pair.tolist() == []
    for empty in (build_plan(ids[:0], 0, 8), build_plan(ids, 0, 0), build_plan(ids[:0], 0, 0)):
        assert [a.tolist() for a in empty] == [[], [0], []]


def test_plan_of_random_ids():
    rng = np.random.default_rng(3)
    for n_expert in (1, 3, 64, 300):
        ids = rng.integers(-1, n_expert + 5, 500).astype(np.int32)
        expert, start, pair = build_plan(ids, 0, n_expert)
        taken = np.flatnonzero((ids >= 0) & (ids < n_expert))
        order = taken[np.argsort(ids[taken], kind="stable")]
        np.testing.assert_array_equal(pair, order)
        np.testing.assert_array_equal(np.repeat(expert, np.diff(start)), ids[order])
        assert np.all(np.diff(expert) > 0)
