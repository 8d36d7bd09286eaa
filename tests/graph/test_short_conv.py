"""Models with gated short convolutions: recorded logits of the dense ones, memory, and what their files may say.

What a timeline does with their state is tested in test_hybrid.py.
"""

import functools

import numpy as np
import pytest
from moeengine.kernels.threads import Team

from moeengine.errors import GGUFError, UnsupportedError
from moeengine.loader.model_info import describe, kv_bytes_per_token, recurrent_bytes
from tests.arch_models import prompt, weights_crc, write_arch
from tests.arch_parts import E
from tests.graph.test_archs import RECORDS
from tests.graph.test_hybrid import error_of
from tests.graph.test_reference import assert_same_bytes_everywhere, load, logits
from tests.odd_values import compute_not_finite, count_refused

DENSE = ("lfm2", "lfm2-window")


@pytest.mark.parametrize("name", DENSE)
def test_logits_of_dense_models_equal_stock(tmp_path, name):
    tiny, record = write_arch(tmp_path / "m.gguf", name), np.load(RECORDS / f"{name}.npz")
    assert weights_crc(tiny) == record["crc"], "other weights than were recorded; see tools/record_archs.py"
    got = logits(load(tiny), prompt(), n_ubatch=512)
    assert error_of(got, record["logits"]).max() < 1e-9
    assert (got.argmax(-1) == record["logits"].argmax(-1)).all()


@pytest.mark.parametrize("name", DENSE)
def test_dense_models_are_the_same_bytes_everywhere(tmp_path, name):
    assert_same_bytes_everywhere(write_arch(tmp_path / "m.gguf", name, quant="Q8_0"), prompt())


@pytest.mark.parametrize("n_taps", [2, 4, 16])
def test_taps_in_any_number(tmp_path, n_taps):
    """With zeros before the last three they are three, and cut anywhere they give the same bytes."""
    path, three = tmp_path / "m.gguf", write_arch(tmp_path / "three.gguf", "lfm2moe")
    convs = {name: array for name, (array, _) in three.tensors.items() if name.endswith("conv.weight")}
    n = min(3, n_taps)
    tensors = {}
    for which, count in (("three", 3), ("other", n_taps)):
        tensors[which] = {name: np.zeros((E, count), np.float32) for name in convs}
        for name, array in tensors[which].items():
            array[:, -n:] = convs[name][:, -n:]
    made = {name: (array, three.tensors[name][1]) for name, array in tensors["three"].items()}
    want = logits(load(write_arch(path, "lfm2moe", tensors=made)), prompt(), n_ubatch=192)
    made = {name: (array, three.tensors[name][1]) for name, array in tensors["other"].items()}
    model = load(write_arch(path, "lfm2moe", tensors=made, metadata={"shortconv.l_cache": n_taps}))
    for n_ubatch in (192, 5, 1):
        assert logits(model, prompt(), n_ubatch=n_ubatch).tobytes() == want.tobytes()


@pytest.mark.parametrize("counts", [[0] * 5, [1] * 5])
def test_layers_of_one_kind_only(tmp_path, counts):
    """A layer of the other kind is taken from another place."""
    made = write_arch(tmp_path / "m.gguf", "lfm2moe").tensors
    source = 2 if not counts[0] else 1
    parts = [name.split(".", 2)[2] for name in made if name.startswith(f"blk.{source}.") and "ffn" not in name and "exp" not in name]
    tensors = {f"blk.{il}.{part}": made[f"blk.{source}.{part}"] for il in range(5) for part in parts}
    tensors = {name: None for name in made if name.startswith("blk.") and ("attn" in name or "shortconv" in name)} | tensors
    model = load(write_arch(tmp_path / "a.gguf", "lfm2moe", tensors=tensors, metadata={"attention.head_count_kv": counts}))
    want = logits(model, prompt(), n_ubatch=192)
    assert np.isfinite(want).all()
    assert logits(model, prompt(), n_ubatch=7).tobytes() == want.tobytes()


def test_memory_is_counted(tmp_path):
    model = load(write_arch(tmp_path / "m.gguf", "lfm2moe"))
    n_state = 3 * 2 * E
    assert model.sizes.n_recurrent == n_state
    assert recurrent_bytes(model.file) == 8 * n_state  # and a copy
    assert kv_bytes_per_token(model.file) == 2 * 2 * 2 * 32
    assert describe(model.file, 64).kv_bytes == model.kv_bytes(64) == 64 * kv_bytes_per_token(model.file) + 8 * n_state
    assert model.new_context(n_ctx=64, n_ubatch=8, team=Team(1)).memory_bytes["kv"] == model.kv_bytes(64)


REFUSED = [
    *(("shortconv.l_cache", value, "shortconv.l_cache") for value in (None, 0, 1, -1, 17, 1 << 31, 3.0, "x", [3, 3])),
    ("shortconv.l_cache", 4, "shortconv.conv.*64 x 3.*64 x 4"), ("attention.head_count_kv", 0, "blk.1.shortconv"),
    ("attention.head_count_kv", 1, "blk.0.attn_q"), ("attention.head_count_kv", [0, 1], "head_count_kv"),
    ("attention.head_count_kv", [0, -1, 0, 0, 1], "head_count_kv"), ("attention.head_count_kv", [0, 3, 0, 0, 1], "layer 1"),
    ("attention.head_count", 0, "head_count"), ("expert_gating_func", None, "expert_gating_func"),
    ("attention.causal", False, "attention.causal"), ("attention.causal", 1, "attention.causal"),
]  # fmt: skip


@pytest.mark.parametrize("key, value, words", REFUSED, ids=lambda v: str(v)[:40])
def test_bad_metadata_is_refused_with_the_key(tmp_path, key, value, words):
    with pytest.raises((GGUFError, UnsupportedError), match=words):
        load(write_arch(tmp_path / "m.gguf", "lfm2moe", metadata={key: value}))


@pytest.mark.parametrize("value", [-1, 1 << 31, "x", [40, 40]])
def test_a_bad_window_is_refused(tmp_path, value):
    with pytest.raises(GGUFError, match="sliding_window"):
        load(write_arch(tmp_path / "m.gguf", "lfm2", metadata={"attention.sliding_window": value}))


def test_no_window_is_none(tmp_path):
    path = tmp_path / "m.gguf"
    got = [
        logits(load(write_arch(path, "lfm2", metadata={"attention.sliding_window": n})), prompt()).tobytes() for n in (None, 0, 192, 191)
    ]
    assert got[0] == got[1] == got[2] != got[3]


def test_a_missing_or_odd_tensor_is_named(tmp_path):
    tiny, path = write_arch(tmp_path / "a.gguf", "lfm2moe"), tmp_path / "m.gguf"
    names = [name for name in tiny.tensors if name.startswith(("blk.0.", "blk.1.")) and "_exps" not in name and "exp_probs" not in name]
    assert {"blk.0.shortconv.conv.weight", "blk.0.shortconv.in_proj.weight", "blk.0.shortconv.out_proj.weight"} < set(names)
    qtype = tiny.tensors["blk.0.attn_norm.weight"][1]
    for name in [*names, "token_embd_norm.weight"]:
        for wrong in (None, np.zeros((3, 5)), np.zeros(7), np.zeros((2, 2, 2)), np.zeros((1, 3 * E, E)), np.zeros((E, 1, 3))):
            tensor = None if wrong is None else (wrong.astype(np.float32), qtype)
            with pytest.raises(GGUFError, match=name.removesuffix(".weight")):
                load(write_arch(path, "lfm2moe", tensors={name: tensor}))


def test_any_value_of_their_own_keys_works_or_is_refused(tmp_path):
    keys = ("shortconv.l_cache", "attention.head_count_kv", "leading_dense_block_count", "expert_gating_func", "attention.causal")
    write = functools.partial(write_arch, name="lfm2moe")
    assert count_refused(tmp_path / "a.gguf", write, keys) > 30


def test_values_that_are_not_finite_do_not_crash(tmp_path):
    write = functools.partial(write_arch, name="lfm2moe")
    compute_not_finite(tmp_path / "m.gguf", write, write(tmp_path / "a.gguf"), ["blk.0.shortconv.conv.weight"])


def test_a_convolution_sees_no_more_than_its_taps(tmp_path):
    """Without attention a token is forgotten after as many positions as all layers' taps reach back."""
    made = write_arch(tmp_path / "m.gguf", "lfm2").tensors
    tensors = {f"blk.{il}.{part}": None for il in (1, 2, 3, 4) for part in
               {name.split(".", 2)[2] for name in made if name.startswith(f"blk.{il}.")}}  # fmt: skip
    model = load(write_arch(tmp_path / "a.gguf", "lfm2", tensors=tensors, metadata={"block_count": 1}))
    a, b = prompt(20), prompt(20)
    b[5] = (a[5] + 1) % 64
    same = (logits(model, a) == logits(model, b)).all(-1)
    assert same.tolist() == [True] * 5 + [False] * 3 + [True] * 12
