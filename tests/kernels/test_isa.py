"""What an instruction set is compiled for, and that the baseline stays baseline."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from moeengine import kernels

CSRC = Path(kernels.__file__).parent / "csrc"
CPUINFO = Path("/proc/cpuinfo")
WIDE = re.compile(r"%[yz]mm\d|%k[0-7]\b|\bv[a-z0-9]+[ps][sd]\b")


def features(name):
    """The feature list in isa_<name>.c, as the compiler sees it."""
    text = (CSRC / f"isa_{name}.c").read_text()
    literal = re.search(r"#define MOE_ISA_FEATURES((?:[^\n]*\\\n)*[^\n]*)", text).group(1)
    return [f for f in "".join(re.findall(r'"([^"]*)"', literal)).split(",") if f]


def test_cpu_has_what_an_available_isa_needs():
    """The kernel's own list agrees with CPUID as cpu.c reads it."""
    if not CPUINFO.exists() or "flags" not in CPUINFO.read_text():
        pytest.skip("no /proc/cpuinfo of an x86 CPU")
    flags = set(re.search(r"^flags\s*:(.*)$", CPUINFO.read_text(), re.M).group(1).split())
    flags |= {f.replace("_", "") for f in flags} | ({"bmi"} if "bmi1" in flags else set())
    flags |= {f.replace("_", "-") for f in flags if f.startswith("amx")}
    for name in kernels.isa()["compiled"]:
        has_all = set(features(name)) <= flags
        assert (name in kernels.isa()["available"]) == has_all, name


def test_every_compiled_feature_is_known_to_cpu_c():
    known = set(re.findall(r'^    \{"([\w-]+)",', (CSRC / "cpu.c").read_text(), re.M))
    for name in kernels.isa()["compiled"]:
        assert set(features(name)) <= known, name


def test_scalar_is_always_there_and_best_comes_first():
    isa = kernels.isa()
    assert isa["available"][-1] == "scalar" and not features("scalar")
    assert [n for n in isa["compiled"] if n in isa["available"]] == isa["available"]
    sizes = [len(features(n)) for n in isa["compiled"]]
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.skipif(not shutil.which("gcc") or not shutil.which("objdump"), reason="needs gcc and objdump")
@pytest.mark.parametrize("source", ["isa_scalar.c", "cpu.c"])
def test_baseline_objects_hold_no_wide_instruction(source, tmp_path):
    obj = tmp_path / "out.o"
    command = ["gcc", "-std=c11", "-O1", "-ffp-contract=off", "-Wno-psabi", "-I", CSRC, "-c", CSRC / source, "-o", obj]
    subprocess.run(command, check=True)
    if "x86-64" not in subprocess.run(["objdump", "-f", obj], capture_output=True, text=True).stdout:
        pytest.skip("not an x86-64 build")
    code = subprocess.run(["objdump", "-d", "--no-show-raw-insn", obj], capture_output=True, text=True, check=True).stdout
    found = [line for line in code.splitlines() if WIDE.search(line)]
    assert "ret" in code and not found, found[:5]
