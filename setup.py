"""Builds the Cython extensions. One C file an instruction set; the choice is made at run time."""

import os
import sys
from pathlib import Path

import numpy
from Cython.Build import cythonize
from setuptools import Extension, setup

ROOT = Path(__file__).parent
KERNELS = Path("moeengine/kernels")
CSRC = KERNELS / "csrc"
sys.path.insert(0, str(ROOT / "tools"))

DEBUG = bool(os.environ.get("MOEENGINE_DEBUG"))
SANITIZE = os.environ.get("MOEENGINE_SANITIZE", "")
# Only the baseline here: what an instruction set may use is stated in its own isa_<isa>.c.
CFLAGS = ["-std=c11", "-fno-math-errno", "-ffp-contract=off", "-pthread", "-Wno-psabi"]
# What newer compilers refuse is refused by all of them.
CFLAGS += [f"-Werror={fault}" for fault in ("implicit-function-declaration", "implicit-int", "int-conversion", "incompatible-pointer-types")]
CFLAGS += ["-O1", "-g", "-UNDEBUG"] if DEBUG or SANITIZE else ["-O3", "-g0"]
LDFLAGS = ["-pthread"]
if SANITIZE:
    CFLAGS += [f"-fsanitize={SANITIZE}", "-fno-omit-frame-pointer"]
    LDFLAGS += [f"-fsanitize={SANITIZE}"]

DIRECTIVES = {
    "language_level": 3,
    "boundscheck": DEBUG,
    "wraparound": DEBUG,
    "initializedcheck": DEBUG,
    "nonecheck": DEBUG,
    "cdivision": not DEBUG,
    "embedsignature": True,
    "freethreading_compatible": False,
}
C_SOURCES = {  # extension -> C files linked into it (each file into one extension only)
    "moeengine.kernels.table": sorted(str(p) for p in CSRC.glob("isa_*.c"))
    + [str(CSRC / name) for name in ("amx_unpack.c", "attention_fp16.c", "cpu.c", "gelu_table.c")],
    "moeengine.kernels.threads": [str(CSRC / "team.c")],
    "moeengine.loader.mapped_file": ["moeengine/loader/csrc/bus_guard.c"],
    "moeengine.supply.readers": ["moeengine/supply/csrc/reader_pool.c"],
    "moeengine.supply.slab": ["moeengine/supply/csrc/page_maker.c"],
}


def extensions():
    headers = [str(p) for p in CSRC.rglob("*.h")]
    for pyx in sorted(Path("moeengine").rglob("*.pyx")):
        name = ".".join(pyx.with_suffix("").parts)
        yield Extension(
            name,
            [str(pyx)] + C_SOURCES.get(name, []),
            include_dirs=[str(CSRC), "moeengine/supply/csrc", "moeengine/loader/csrc", numpy.get_include()],
            depends=headers if name in C_SOURCES else [str(CSRC / "moe_table.h"), str(CSRC / "team.h")],
            define_macros=[("NPY_NO_DEPRECATED_API", "NPY_1_7_API_VERSION")],
            extra_compile_args=CFLAGS,
            extra_link_args=LDFLAGS,
        )


def generate_tables():
    from generate_codes import write_codes
    from generate_gelu import write_gelu
    from generate_grids import write_grids

    write_grids(CSRC / "generated" / "grids.h")
    write_codes(CSRC / "generated" / "codes.h")
    write_gelu(CSRC / "generated" / "gelu.h")


generate_tables()
setup(
    packages=[
        "moeengine", "moeengine.cli", "moeengine.engine", "moeengine.graph", "moeengine.graph.arch", "moeengine.kernels",
        "moeengine.loader", "moeengine.models", "moeengine.quantize", "moeengine.supply", "moeengine.supply.modes",
        "moeengine.tokenizer",
    ],
    package_data={"moeengine": ["**/*.pxd"], "moeengine.models": ["*.gguf", "*.md"]},
    options={"build_ext": {"parallel": min(8, os.cpu_count() or 1)}},  # extensions at once; each compiler may take 0.5 GB
    ext_modules=cythonize(list(extensions()), compiler_directives=DIRECTIVES),
)
