"""A model of random weights whose routing is that of the shipped model's recorded tales.

    python -m bench.routed OUT.gguf [--layers 48] [--mix iq2_xxs]

Qwen3-30B-A3B with a token for every token of the record. Its embedding spells which experts its layers choose, the routers
read just that, and what layers add to the residual stream is too small to change it. Each of the 16 recorded experts stands
for eight of the 128, of which the other chosen one picks four. `supply_ratios --only routed` decodes the record.
"""

import argparse
import dataclasses
import sys
from pathlib import Path

import numpy as np

from bench.shapes import PRESETS
from bench.synth import synthesize

RECORDED = Path(__file__).resolve().parent.parent / "tests" / "supply" / "fixtures" / "tales-routing.npz"
SMALL = 0.02  # standard deviation of everything that is not to be read by a router


def chosen_experts(n_expert):
    """Experts of the recorded layers and tokens: int64 (L, T, 8)."""
    recorded = np.load(RECORDED)["chosen"].astype(np.int64)
    n = n_expert // (recorded.max() + 1)
    part = recorded[..., ::-1] % 2 * (n // 2)  # the half that the other choice picks
    experts = (recorded * n + part)[..., None] + np.arange(n // 2)
    return experts.reshape(*recorded.shape[:2], -1)


def routed_weights(shape, experts):
    """A function (tensor, rng) -> float32 array of embedding and routers; None of other tensors."""
    n_layer, n_tokens, _ = experts.shape

    def weights(tensor, rng):
        if tensor.role == "token_embd":
            rows = SMALL * rng.standard_normal(tensor.shape, np.float32)
            for il in range(n_layer):
                at = np.arange(n_tokens)[:, None], il * shape.n_expert + experts[il]
                rows[at] = 1
            return rows
        if tensor.role == "ffn_gate_inp":
            rows = np.zeros(tensor.shape, np.float32)
            order = np.random.default_rng(tensor.il).permutation(shape.n_expert)  # layers of one record differ in it
            rows[order, tensor.il % n_layer * shape.n_expert + np.arange(shape.n_expert)] = 1
            return rows
        return None

    return weights


def main(argv=None) -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("out")
    p.add_argument("--layers", type=int, default=48, help="default %(default)s")
    p.add_argument("--mix", default="iq2_xxs", help="default %(default)s")
    a = p.parse_args(argv)
    shape = PRESETS["qwen3-30b-a3b"]
    experts = chosen_experts(shape.n_expert)
    shape = dataclasses.replace(shape, n_layer=a.layers, n_vocab=experts.shape[1])
    size = synthesize(a.out, shape, a.mix, weights=routed_weights(shape, experts), gain={"attn_output": SMALL, "ffn_down_exps": SMALL})
    print(f"{a.out}: {size / 1e9:.2f} GB, {experts.shape[1]} tokens", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
