"""Writes csrc/generated/codes.h: the code books of the IQ2 and IQ3 types packed for byte look-ups in registers.

A grid point is a few magnitudes out of a short list. Here it is their positions in the list: 2 bits a
weight for IQ2 (4 weights a byte, two tables), 3 bits for IQ3 (2 weights a byte, two tables). The weight
tables turn such a code and a sign bit into weight + 64; quants/iq2_xxs_avx512.h and
quants/iq3_xxs_avx512.h say which bits of the index hold them. The digits of TQ1_0 are 2 bits each, too. Grid
points of IQ1 are 8 bytes, 8 * (value + 1).
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from generate_grids import table, write_if_changed
from gguf import quants

OFFSET = 64  # weight + OFFSET is unsigned
# per weight of a byte: where its code starts and where its sign is
IQ2_BITS = ((0, 4), (2, 5), (2, 0), (4, 1))
IQ3_BITS = ((0, 3), (3, 0), (0, 4), (3, 1))


def grid_of(cls: type) -> np.ndarray:
    """The grid of a type, uint8 (points, weights)."""
    cls.init_grid()
    return cls.grid.reshape(cls.grid_shape).astype(np.uint8)


def codes(grid: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """uint8 (2, points): the codes of the first and of the second half of a point; the list of magnitudes."""
    values, code = np.unique(grid, return_inverse=True)
    code = code.reshape(grid.shape[0], 2, -1).astype(np.uint32)
    shifts = bits * np.arange(code.shape[2], dtype=np.uint32)
    return (code << shifts).sum(axis=2).T.astype(np.uint8), values


def weights(values: np.ndarray, bits: int, positions: tuple) -> np.ndarray:
    """uint8 (4, 64): weight + OFFSET for an index that holds code and sign of one weight at `positions`."""
    index = np.arange(64)
    padded = np.zeros(1 << bits, int)
    padded[: len(values)] = values
    rows = [OFFSET + np.where(index >> sign & 1, -1, 1) * padded[index >> code & (1 << bits) - 1] for code, sign in positions]
    return np.array(rows, np.uint8)


def scaled_planes(values: np.ndarray) -> np.ndarray:
    """int8 (2, 3, 64): weight * (2 * scale + 1) as 32 * high + low for an index of a 2-bit code and a 4-bit scale.

    Layout i has the code in bits 2*i and 2*i+1 and the scale in the other four of six bits, in their order.
    """
    padded = np.zeros(4, int)
    padded[: len(values)] = values
    index = np.arange(64)
    planes = []
    for at in (0, 2, 4):
        scale = (index & (1 << at) - 1) | index >> at + 2 << at
        product = padded[index >> at & 3] * (2 * scale + 1)
        high = (product + 16) // 32
        planes.append((high, product - 32 * high))
    planes = np.array(planes).swapaxes(0, 1)
    assert np.abs(planes).max() < 128
    return planes.astype(np.int8)


def trit_codes() -> np.ndarray:
    """uint8 (2, 256): for a byte of TQ1_0 its first four digits in base 3, 2 bits each, and its fifth."""
    digits = [np.arange(256) * 3**n % 256 * 3 // 256 for n in range(5)]
    return np.array([sum(d << 2 * n for n, d in enumerate(digits[:4])), digits[4]], np.uint8)


def codes_text() -> str:
    """The whole header."""
    parts = [
        "/* Made by tools/generate_codes.py from the gguf package; do not edit. */\n"
        "#ifndef MOE_CODES_H\n#define MOE_CODES_H\n#include <stdint.h>\n"
        "#define MOE_CODE_TABLE __attribute__((aligned(64), unused))\n"
    ]

    def add(name: str, values: np.ndarray) -> None:
        parts.append(table(name, values, "uint8_t").replace("MOE_TABLE", "MOE_CODE_TABLE"))

    for name, cls in (("iq2_xxs", quants.IQ2_XXS), ("iq2_xs", quants.IQ2_XS), ("iq2_s", quants.IQ2_S)):
        packed, values = codes(grid_of(cls), 2)
        add(f"moe_codes_{name}", packed)
    add("moe_iq2_weights", weights(values, 2, IQ2_BITS))
    high, low = scaled_planes(values).view(np.uint8)
    add("moe_iq2_high", high)
    add("moe_iq2_low", low)
    for name, cls in (("iq3_xxs", quants.IQ3_XXS), ("iq3_s", quants.IQ3_S)):
        packed, values = codes(grid_of(cls), 3)
        add(f"moe_codes_{name}", packed)
        add(f"moe_{name}_weights", weights(values, 3, IQ3_BITS))
    grid = grid_of(quants.IQ1_S).view(np.int8)
    add("moe_iq1_points", (8 * (grid + 1)).astype(np.uint8))
    add("moe_codes_tq1_0", trit_codes())
    parts.append("#endif\n")
    return "\n".join(parts)


def write_codes(path: str | Path) -> bool:
    """Write the header to `path` where its content differs; True when it was written."""
    return write_if_changed(path, codes_text())


if __name__ == "__main__":
    write_codes(sys.argv[1])
