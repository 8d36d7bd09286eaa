"""Writes csrc/generated/gelu.h: GELU of every F16 number within -10 .. 10, rounded to F16.

Source: llama.cpp, ggml_gelu_f32 (tanh form, computed in float32) and its table of F16 numbers.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from generate_grids import table, write_if_changed

LAST = 0x4900  # 10 as F16


def gelu(x: np.ndarray) -> np.ndarray:
    """float32 in, float32 out; every step but tanh is rounded to float32, and tanh once at its end."""
    f = np.float32
    inner = f(0.79788456080286535588) * x * (f(1) + f(0.044715) * x * x)
    return f(0.5) * x * (f(1) + np.tanh(inner.astype(np.float64)).astype(f))


def write_gelu(path: str | Path) -> bool:
    """Write the header to `path` where its content differs; True when it was written."""
    x = np.arange(LAST + 1, dtype=np.uint16).view(np.float16).astype(np.float32)
    values = np.concatenate([gelu(x), gelu(-x)]).astype(np.float16).view(np.uint16)
    text = (
        "/* Made by tools/generate_gelu.py; do not edit. Positive numbers first, each half in the order of their bits. */\n"
        "#define MOE_TABLE __attribute__((aligned(64)))\n"
    )
    return write_if_changed(path, text + table("moe_gelu_values", values, "uint16_t").replace("static const", "const", 1))
