"""Rounds the training model's weights to the quant types of the shipped file, weighted by what the activations do."""

from __future__ import annotations

import numpy as np
import torch
from gguf import GGMLQuantizationType as Q
from gguf import quants

from moeengine.quantize import quantize

from .torch_model import Config, TalesModel


def types(c: Config) -> dict[str, Q]:
    """Quant type of every rounded weight; what is not named here (norms, routers) stays float32."""
    out = {"token_embd": Q.Q8_0}
    for il in range(c.n_layer):
        out |= {f"blk.{il}.{name}": Q.Q8_0 for name in ("attn_q", "attn_k", "attn_v", "attn_output")}
        out |= {f"blk.{il}.ffn_gate_exps": Q.IQ2_XXS, f"blk.{il}.ffn_up_exps": Q.IQ2_XXS}
        # One layer has IQ2_XXS in the down projection too, one Q4_K throughout.
        out[f"blk.{il}.ffn_down_exps"] = Q.IQ2_XXS if il == 1 else Q.Q4_K
        if il == c.n_layer - 1:
            out |= {f"blk.{il}.ffn_gate_exps": Q.Q4_K, f"blk.{il}.ffn_up_exps": Q.Q4_K}
    return out


@torch.no_grad()
def importance(model: TalesModel, batches: list[torch.Tensor]) -> dict[str, np.ndarray]:
    """Mean square of the input of each expert bank, float32 (n_expert, 1, columns); `up` shares the input of `gate`."""
    sums: dict[str, list] = {}

    def watch(name: str, expert: int, x: torch.Tensor) -> None:
        n = model.c.n_expert
        total, count = sums.setdefault(name, [np.zeros((n, x.shape[-1])), np.zeros((n, 1))])
        total[expert] += x.double().square().sum(0).numpy()
        count[expert] += len(x)

    for tokens in batches:
        model(tokens, watch)
    means = {}
    for name, (total, count) in sums.items():
        # An expert that saw few tokens leans on what its layer saw: 32 tokens' worth.
        layer = total.sum(0) / count.sum()
        means[name] = ((total + 32 * layer) / (count + 32))[:, None].astype(np.float32)
        if name.endswith("ffn_gate_exps"):
            means[name.replace("gate", "up")] = means[name]
    return means


def weight_of(model: TalesModel, name: str) -> torch.Tensor:
    head, _, tail = name.rpartition(".")
    return getattr(model.blk[int(head.split(".")[1])] if head else model, tail)


def rounded(model: TalesModel, chosen: dict[str, Q], importances: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The bytes of each chosen weight, uint8 (..., row_bytes)."""
    return {
        name: quantize(weight_of(model, name).detach().numpy(), qtype, importance=importances.get(name))
        for name, qtype in chosen.items()
    }


def substitutes(raws: dict[str, np.ndarray], chosen: dict[str, Q]) -> dict[str, torch.Tensor]:
    """What the bytes stand for, float32."""
    return {name: torch.from_numpy(quants.dequantize(raw, chosen[name]).copy()) for name, raw in raws.items()}
