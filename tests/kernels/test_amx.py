"""Tiles: their emulation, the self-check, and products that go through them.

The emulation runs the code of isa_amx.c on any CPU with AVX-512 (`amx_emulated`); test_quants.py runs everything on
it, too. Where the machine has tiles, all of this also runs on them."""

import ctypes
import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest

from moeengine import kernels
from moeengine.errors import UnsupportedError
from moeengine.kernels import testing

from .blocks import FLOATS, TYPES, random_raw, set_halves
from .isas import ISAS, assert_same_bytes, forced
from .test_isa import CSRC

TILED = [name for name in TYPES if name not in FLOATS]
WITH_TILES = [name for name in ISAS if name.startswith("amx")]
needs_tiles = pytest.mark.skipif(not WITH_TILES, reason="needs AVX-512")
KINDS = ["emulated"] + (["tiles"] if "amx" in ISAS else [])  # bodies of amx_tiles.h that run here
needs_gcc = pytest.mark.skipif(
    not shutil.which("gcc") or not shutil.which("objdump") or os.uname().machine != "x86_64",
    reason="needs gcc and objdump on x86-64",
)

TILE_CODE = """
#include "amx_tiles.h"
void config(const moe_tile_config *c) { tile_config_load(c); }
void saved(moe_tile_config *c) { tile_config_store(c); }
void release(void) { tile_release(); }
void zero(void) { tile_zero(2); }
void load_a(const void *p, size_t stride) { tile_load(0, p, stride); }
void load_b(const void *p, size_t stride) { tile_load(1, p, stride); }
void load_c(const void *p, size_t stride) { tile_load(2, p, stride); }
void store_c(void *p, size_t stride) { tile_store(2, p, stride); }
void ssd(void) { tile_dp_ssd(2, 0, 1); }
void sud(void) { tile_dp_sud(2, 0, 1); }
#if MOE_AMX_EMULATED /* the assembler refuses it */
void same(void) { tile_dp_ssd(2, 0, 0); }
#endif
"""


def compile_c(tmp_path, text, *flags):
    """The path of a shared library made of one C text."""
    source, library = tmp_path / "code.c", tmp_path / "code.so"
    source.write_text(text)
    command = ["gcc", "-std=c11", "-O2", "-shared", "-fPIC", "-I", CSRC, *flags, source, "-o", library]
    subprocess.run(command, check=True)
    return str(library)


def compile_tiles(tmp_path, kind):
    return compile_c(tmp_path, TILE_CODE, f"-DMOE_AMX_EMULATED={int(kind == 'emulated')}")


def config_bytes(rows, colsb, palette=1):
    """A tile configuration, uint8 (64); rows and colsb of tiles 0, 1, .."""
    raw = np.zeros(64, np.uint8)
    raw[0] = palette
    raw[16 : 16 + 2 * len(colsb)] = np.array(colsb, np.uint16).view(np.uint8)
    raw[48 : 48 + len(rows)] = rows
    return raw


def pointer(array):
    return ctypes.c_void_p(array.ctypes.data)


@needs_gcc
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("m,k,n", [(16, 64, 64), (1, 64, 64), (9, 64, 64), (16, 4, 64), (5, 32, 12), (16, 64, 4)])
def test_tiles_do_what_the_manual_says(tmp_path, m, k, n, kind):
    """C (m, n/4 dwords) += A (m, k bytes) x B (k/4, n bytes: dword columns)."""
    tiles = ctypes.CDLL(compile_tiles(tmp_path, kind))
    rng = np.random.default_rng(m * k + n)
    config = config_bytes([m, k // 4, m], [k, n, n])
    tiles.config(pointer(config))
    back = np.full(64, 7, np.uint8)
    tiles.saved(pointer(back))
    np.testing.assert_array_equal(back, config)
    a = rng.choice(np.array([-128, -127, 0, 1, 127], np.int8), (16, 80))
    b = rng.choice(np.array([0, 1, 127, 128, 255], np.uint8), (16, 96))
    c = rng.integers(-(2**31), 2**31, (16, 20)).astype(np.int32)
    for product, b_type in (("ssd", np.int8), ("sud", np.uint8)):
        tiles.load_a(pointer(a), ctypes.c_size_t(80))
        tiles.load_b(pointer(b), ctypes.c_size_t(96))
        tiles.load_c(pointer(c), ctypes.c_size_t(80))
        tiles[product]()
        got = np.full((16, 24), 5, np.int32)
        tiles.store_c(pointer(got), ctypes.c_size_t(96))
        signed = b[: k // 4, :n].view(b_type).astype(np.int64).reshape(k // 4, n // 4, 4)
        want = np.einsum("mki,kni->mn", a[:m, :k].astype(np.int64).reshape(m, k // 4, 4), signed) + c[:m, : n // 4]
        np.testing.assert_array_equal(got[:m, : n // 4], want.astype(np.int32))
        assert np.all(got[m:] == 5) and np.all(got[:, n // 4 :] == 5)
    tiles.zero()
    tiles.store_c(pointer(got), ctypes.c_size_t(96))
    assert not got[:m, : n // 4].any()
    tiles.release()
    tiles.saved(pointer(back))
    assert not back.any()


@needs_gcc
@pytest.mark.parametrize("kind", KINDS)
def test_tiles_trap_where_the_processor_does(tmp_path, kind):
    """The processor's #UD is SIGILL, its #GP SIGSEGV; the emulation has SIGILL for both."""
    library = compile_tiles(tmp_path, kind)
    good, reserved, start = config_bytes([16] * 3, [64] * 3), config_bytes([16], [64]), config_bytes([16], [64])
    reserved[5], start[1] = 1, 1
    cases = [
        (good, "ssd", False), (config_bytes([0] * 3, [0] * 3, 0), "release", False),
        (config_bytes([0] * 3, [0] * 3, 0), "zero", True), (config_bytes([16], [64]), "zero", True),
        (config_bytes([16] * 3, [64] * 3, 2), "release", True), (config_bytes([17], [64]), "release", True),
        (config_bytes([16], [65]), "release", True), (config_bytes([16], [0]), "release", True),
        (config_bytes([0] * 8 + [1], [0] * 8 + [4]), "release", True), (reserved, "release", True), (start, "release", True),
        (config_bytes([16, 16, 15], [64] * 3), "ssd", True), (config_bytes([16, 15, 16], [64] * 3), "ssd", True),
        (config_bytes([16] * 3, [64, 64, 60]), "sud", True), (good, "same", True),
    ]  # fmt: skip
    if kind == "tiles":  # `same` cannot be assembled; a row to start at is for tiles that an interrupt cut short
        cases = [case for case in cases if case[1] != "same" and case[0] is not start]
    allow = "from moeengine import kernels; kernels.isa()" if kind == "tiles" else "pass"
    for config, call, traps in cases:
        code = (
            f"{allow}; import ctypes, numpy as np; t = ctypes.CDLL({library!r});"
            f"c = np.array({config.tolist()}, np.uint8); t.config(ctypes.c_void_p(c.ctypes.data)); t.{call}()"
        )
        status = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode
        signals = {-4, -11} if kind == "tiles" else {-4}  # SIGILL, SIGSEGV
        assert status in (signals if traps else {0}), (config.tolist(), call, status)


@needs_gcc
def test_instructions_have_their_operands_in_order(tmp_path):
    """AT&T syntax: sources first. What the emulation calls a, b, c is what the instructions get."""
    library = compile_c(tmp_path, TILE_CODE, "-DMOE_AMX_EMULATED=0")
    text = subprocess.run(["objdump", "-d", "--no-show-raw-insn", library], capture_output=True, text=True, check=True).stdout
    body = dict(re.findall(r"^[0-9a-f]+ <(\w+)>:\n(.*?)(?:\n\n|\Z)", text, re.M | re.S))
    for name, pattern in {
        "config": r"ldtilecfg\s+\(%rdi\)", "saved": r"sttilecfg\s+\(%rdi\)", "release": r"tilerelease", "zero": r"tilezero\s+%tmm2",
        "load_a": r"tileloadd\s+\(%rdi,%rsi,1\),%tmm0", "load_b": r"tileloadd\s+\(%rdi,%rsi,1\),%tmm1",
        "store_c": r"tilestored\s+%tmm2,\(%rdi,%rsi,1\)", "ssd": r"tdpbssd\s+%tmm1,%tmm0,%tmm2", "sud": r"tdpbsud\s+%tmm1,%tmm0,%tmm2",
    }.items():  # fmt: skip
        assert re.search(pattern, body[name]), body[name]


CONFIG_CODE = """
__attribute__((visibility("hidden"))) unsigned char seen[64];
%s
const unsigned char *configure(uint8_t rows) {
    moe_tile_config c = {.palette = 1};
    for (int t = 0; t < 8; t++) c.colsb[t] = 64, c.rows[t] = rows;
    tile_config_load(&c);
    return seen;
}
"""


@needs_gcc
@needs_tiles
@pytest.mark.parametrize("level", ["-O1", "-O2", "-O3"])
def test_the_whole_configuration_is_stored_before_it_is_loaded(tmp_path, level):
    """Compilers' own headers let these stores be dropped. Here the instruction is replaced by a copy of what it would read."""
    copy = r"vmovdqu64 %0, %%zmm31\n\tvmovdqu64 %%zmm31, seen(%%rip)"
    header = (CSRC / "amx_tiles.h").read_text()
    assert '"ldtilecfg %0"' in header
    text = CONFIG_CODE % header.replace("ldtilecfg %0", copy).replace('#include "simd', f'#include "{CSRC}/simd')
    library = ctypes.CDLL(compile_c(tmp_path, text, "-DMOE_AMX_EMULATED=0", level))
    library.configure.restype = ctypes.POINTER(ctypes.c_uint8 * 64)
    np.testing.assert_array_equal(np.array(library.configure(7).contents), config_bytes([7] * 8, [64] * 8))


@needs_tiles
@pytest.mark.parametrize("isa", WITH_TILES)
def test_self_check_passes(isa):
    with forced(isa):
        assert testing.self_check() is None


@needs_gcc
@needs_tiles
def test_self_check_finds_wrong_products(tmp_path):
    """Against a table whose Q6_K products are all 1: what differs is named."""
    text = """
#include <string.h>
#include "moe_table.h"
static void ones(const moe_mul *m) {
    for (size_t t = 0; t < m->n_x; t++) for (size_t r = 0; r < m->n_rows; r++) m->out[t * m->out_stride + r] = 1;
}
extern moe_isa moe_isa_amx_emulated;
static void zeros(size_t n, const float *x, void *y) {
    (void)x;
    memset(y, 0, n / 256 * 320);
}
const moe_isa moe_isa_avx512 = {.types = {[14] = {"Q6_K", 14, MOE_X_Q8_K, 256, 210, 0, ones}},
                                .x = {[MOE_X_Q8_K] = {256, 320, zeros}}};
static void ours(const moe_mul *m) { ones(m); }
const char *check(void) {
    const int keep[] = {14};
    for (int i = 0; i < MOE_TYPE_MAX; i++) if (i != keep[0]) moe_isa_amx_emulated.types[i].mul_mat = 0;
    return moe_isa_amx_emulated.check();
}
const char *check_equal(void) {
    for (int i = 0; i < MOE_TYPE_MAX; i++) moe_isa_amx_emulated.types[i].mul_mat = i == 14 ? ours : 0;
    return moe_isa_amx_emulated.check();
}
"""
    library = compile_c(tmp_path, text, CSRC / "isa_amx_emulated.c", CSRC / "amx_unpack.c", "-Wno-psabi")
    for name, wrong in (("check", "Q6_K"), ("check_equal", "None")):
        code = f"import ctypes; c = ctypes.CDLL({library!r}).{name}; c.restype = ctypes.c_char_p; r = c(); print(r and r.decode())"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.split() == [wrong]


def test_emulation_is_never_chosen_by_itself():
    isa = kernels.isa()
    assert isa["for_tests"] == (["amx_emulated"] if "avx512" in isa["available"] else [])
    assert isa["active"] != "amx_emulated" and "amx_emulated" not in isa["available"] + isa["compiled"]
    env = {k: v for k, v in os.environ.items() if k != "MOEENGINE_ISA"}
    code = "from moeengine import kernels; print(kernels.isa()['active'])"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == isa["available"][0]


def test_what_cannot_be_had_is_explained():
    isa = kernels.isa()
    assert set(isa["refused"]) >= set(isa["compiled"]) - set(isa["available"])
    for name, reason in isa["refused"].items():
        assert re.match(r"this CPU or system does not offer \w|its products of \w+ differ", reason)
        with pytest.raises(UnsupportedError, match=re.escape(f"({name}: {reason})")):
            kernels.set_isa(name)


@pytest.mark.skipif("amx" not in ISAS, reason="needs tiles")
@pytest.mark.parametrize("n_bytes,active", [(4096, "avx512"), (65536, "amx")])
def test_alternate_signal_stacks_and_tiles(n_bytes, active):
    """Linux refuses tiles where a signal's frame with them would not fit; what computes then is AVX-512."""
    code = f"""
import ctypes
class Stack(ctypes.Structure):
    _fields_ = [("sp", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t)]
memory = ctypes.create_string_buffer({n_bytes})
stack = Stack(ctypes.addressof(memory), 0, {n_bytes})
assert ctypes.CDLL(None).sigaltstack(ctypes.byref(stack), None) == 0
from moeengine import kernels
isa = kernels.isa()
print(isa["active"], isa["refused"].get("amx", ""))
"""
    env = {k: v for k, v in os.environ.items() if k != "MOEENGINE_ISA"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout.split(None, 1)
    assert done[0] == active
    assert ("alternate signal stack" in " ".join(done[1:])) == (active != "amx")


def worst_raw(rng, name, n_rows, n_in):
    """Rows of the largest quants and scales (bytes 0x00, 0xff, 0x7f, 0x80 and mixtures of them), with finite d."""
    _, block, n_bytes = TYPES[name]
    raw = rng.choice(np.array([0x00, 0xFF, 0x7F, 0x80], np.uint8), (n_rows, n_in // block, n_bytes))
    for i, byte in enumerate((0x00, 0xFF, 0x7F, 0x80)):
        raw[i::8] = byte
    blocks = raw.reshape(-1, n_bytes)
    set_halves(blocks, name, rng.choice([1.5, -1.5], len(blocks)))
    return raw.reshape(n_rows, -1)


@needs_tiles
@pytest.mark.parametrize("isa", WITH_TILES)
@pytest.mark.parametrize("name", TILED)
def test_extreme_planes_give_the_same_bytes(isa, name):
    rng = np.random.default_rng(1)
    raw = worst_raw(rng, name, 40, 512)
    x = rng.choice(np.array([-1, 1], np.float32), (100, 512))
    x[::3] = 1
    x[1::3] = -1
    with forced("scalar"):
        want = kernels.mul_mat(raw, name, x)
    assert np.abs(want[np.isfinite(want)]).max() > (1e-3 if name == "MXFP4" else 100)  # blocks.py keeps its scales small
    for n_rows in (40, 16, 3):
        for n_x in (1, 8, 15, 16, 17, 31, 32, 33, 48, 49, 65, 100):
            with forced(isa):
                assert_same_bytes(kernels.mul_mat(raw[:n_rows], name, x[:n_x], 1), want[:n_x, :n_rows])


@needs_tiles
@pytest.mark.parametrize("isa", WITH_TILES)
def test_experts_with_any_number_of_rows(isa):
    """Experts 0, 2, 4, .. get no row, 1, 5, .. one, the others many; some slots are inactive."""
    rng = np.random.default_rng(2)
    for name in ("IQ2_XXS", "Q4_K", "Q6_K", "Q3_K"):
        raw = random_raw(rng, name, (12, 33), 256)
        ids = rng.choice(np.array([3, 7, 11, -1]), (60, 4)).astype(np.int32)
        ids[0], ids[1] = (1, 5, 9, -1), (-1, -1, -1, -1)
        x = rng.standard_normal((60, 256), np.float32)
        results = []
        for one in ("scalar", isa):
            with forced(one):
                results.append(kernels.mul_mat_id(raw, name, x, ids))
        assert_same_bytes(results[1], results[0])
        assert results[0][0, :3].any() and not results[0][1].any()


RESTORE_CODE = """
#include "isa_amx_emulated.c"
const moe_isa moe_isa_avx512;
static uint8_t w[40 * 210];
static block_x_q8_K x[20];
static float out[20 * 40];
/* 1 where a product left the configuration as it was: none, and one of somebody else */
int restores(void) {
    moe_tile_config none = {0}, other = {.palette = 1, .colsb = {64, 32}, .rows = {3, 5}}, now;
    moe_mul m = {256, 40, w, 210, 20, x, sizeof *x, out, 40};
    mul_mat_amx_Q6_K(&m);
    now = moe_tiles.config;
    if (memcmp(&now, &none, sizeof now)) return 0;
    tile_config_load(&other);
    mul_mat_amx_Q6_K(&m);
    now = moe_tiles.config;
    return memcmp(&now, &other, sizeof now) == 0;
}
"""


@needs_gcc
@needs_tiles
def test_the_tiles_of_others_keep_their_configuration(tmp_path):
    library = compile_c(tmp_path, RESTORE_CODE, CSRC / "amx_unpack.c", "-Wno-psabi")
    assert ctypes.CDLL(library).restores() == 1
