"""Writes csrc/generated/grids.h: the code books of the IQ and FP4 types, from the gguf package.

setup.py runs it before every build; the file is rewritten only when its content changes, so that a
build without changes compiles nothing.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from gguf import quants

# C name, class of gguf.quants, C element type
GRIDS = (
    ("moe_grid_iq1", quants.IQ1_S, "int8_t"),  # IQ1_S and IQ1_M
    ("moe_grid_iq2_xxs", quants.IQ2_XXS, "uint8_t"),
    ("moe_grid_iq2_xs", quants.IQ2_XS, "uint8_t"),
    ("moe_grid_iq2_s", quants.IQ2_S, "uint8_t"),
    ("moe_grid_iq3_xxs", quants.IQ3_XXS, "uint8_t"),
    ("moe_grid_iq3_s", quants.IQ3_S, "uint8_t"),
)
VALUES = (
    ("moe_values_iq4_nl", quants.IQ4_NL.kvalues),  # IQ4_NL and IQ4_XS
    ("moe_values_mxfp4", quants.MXFP4.kvalues),  # MXFP4 and NVFP4, doubled e2m1 values
)


def table(name: str, values: np.ndarray, ctype: str) -> str:
    """One static table of one or two dimensions, aligned to a cache line."""
    shape = "".join(f"[{n}]" for n in values.shape)
    flat = [float(v).hex() + "f" if ctype == "float" else str(int(v)) for v in values.ravel()]
    lines = [", ".join(flat[i : i + 24]) for i in range(0, len(flat), 24)]
    body = ",\n    ".join(lines)
    if values.ndim == 2:
        body = ",\n    ".join("{" + ", ".join(str(int(v)) for v in row) + "}" for row in values)
    return f"static const {ctype} {name}{shape} MOE_TABLE = {{\n    {body}}};\n"


def ue4m3_halves() -> np.ndarray:
    """float32 (256): half the value of unsigned e4m3 (bias 7), bit 7 ignored; 0x7f means 0.

    Source: llama.cpp ggml-impl.h, ggml_ue4m3_to_fp32.
    """
    code = np.arange(256)
    exponent, mantissa = code >> 3 & 15, code & 7
    value = np.where(exponent == 0, mantissa * 2.0**-9, (1 + mantissa / 8) * 2.0 ** (exponent - 7))
    return np.where(code == 0x7F, 0, value / 2).astype(np.float32)


def grids_text() -> str:
    """The whole header."""
    head = (
        "/* Made by tools/generate_grids.py from the gguf package; do not edit. */\n"
        "#ifndef MOE_GRIDS_H\n#define MOE_GRIDS_H\n#include <stdint.h>\n"
        "#define MOE_TABLE __attribute__((aligned(64), unused))\n"
    )
    parts = [head]
    for name, cls, ctype in GRIDS:
        cls.init_grid()
        parts.append(table(name, cls.grid.reshape(cls.grid_shape), ctype))
    signs = np.frombuffer(quants.IQ2_XXS.ksigns, np.uint8)
    parts.append(
        "/* 7 sign bits -> 8: the eighth makes the number of ones even */\n"
        + table("moe_signs7", signs, "uint8_t")
    )
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    sign_bytes = 1 - 2 * bits.astype(np.int8)
    parts.append(
        "/* 8 sign bits -> 8 bytes, 1 or -1 */\n" + table("moe_signs8", sign_bytes, "int8_t")
    )
    parts.append(
        "/* the same from 7 sign bits */\n" + table("moe_signs7_bytes", sign_bytes[signs], "int8_t")
    )
    for name, values in VALUES:
        parts.append(table(name, np.array(values), "int8_t"))
    halves = quants.MXFP4.e8m0_to_fp32_half(np.arange(256, dtype=np.uint8))
    parts.append("/* 2^(e - 128) */\n" + table("moe_e8m0_halves", halves, "float"))
    parts.append(table("moe_ue4m3_halves", ue4m3_halves(), "float"))
    parts.append("#endif\n")
    return "\n".join(parts)


def write_if_changed(path: str | Path, text: str) -> bool:
    """Write `text` to `path` where its content differs; True when it was written."""
    path = Path(path)
    if path.exists() and path.read_text() == text:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return True


def write_grids(path: str | Path) -> bool:
    """Write the header to `path` where its content differs; True when it was written."""
    return write_if_changed(path, grids_text())


if __name__ == "__main__":
    write_grids(sys.argv[1])
