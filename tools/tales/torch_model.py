"""The shipped model in PyTorch, tensor for tensor as `general.architecture = qwen3moe` has it.

Only for training and for checking.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass(frozen=True)
class Config:
    n_vocab: int = 1536
    n_embd: int = 256
    n_layer: int = 4
    n_head: int = 4
    n_head_kv: int = 2
    head_dim: int = 64
    n_expert: int = 16
    n_expert_used: int = 2
    n_ff_exp: int = 256
    rope_base: float = 10000.0
    rms_eps: float = 1e-6


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Float32 (..., n): x / rms(x) * weight."""
    x = x.float()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def rope_tables(n_tokens: int, head_dim: int, base: float) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin, float32 (T, head_dim / 2)."""
    inverse = base ** (-torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    angles = torch.arange(n_tokens, dtype=torch.float32)[:, None] * inverse
    return angles.cos(), angles.sin()


def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """NEOX pairing: element i turns with element i + d/2. x float32 (B, H, T, d)."""
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


class Layer(nn.Module):
    """One block. Weight names are those of the GGUF file without `blk.N.`, underscores for dots."""

    def __init__(self, c: Config):
        super().__init__()

        def matrix(*shape, scale=1.0):
            return nn.Parameter(torch.randn(*shape) * scale * shape[-1] ** -0.5)

        self.c = c
        out = (2 * c.n_layer) ** -0.5
        self.attn_norm, self.ffn_norm = nn.Parameter(torch.ones(c.n_embd)), nn.Parameter(torch.ones(c.n_embd))
        self.attn_q_norm, self.attn_k_norm = nn.Parameter(torch.ones(c.head_dim)), nn.Parameter(torch.ones(c.head_dim))
        self.attn_q = matrix(c.n_head * c.head_dim, c.n_embd)
        self.attn_k = matrix(c.n_head_kv * c.head_dim, c.n_embd)
        self.attn_v = matrix(c.n_head_kv * c.head_dim, c.n_embd)
        self.attn_output = matrix(c.n_embd, c.n_head * c.head_dim, scale=out)
        self.ffn_gate_inp = matrix(c.n_expert, c.n_embd, scale=0.5)
        self.ffn_gate_exps = matrix(c.n_expert, c.n_ff_exp, c.n_embd)
        self.ffn_up_exps = matrix(c.n_expert, c.n_ff_exp, c.n_embd)
        self.ffn_down_exps = matrix(c.n_expert, c.n_embd, c.n_ff_exp, scale=out * 2)

    def attention(self, x: torch.Tensor, cos, sin) -> torch.Tensor:
        c, (b, t, _) = self.c, x.shape
        q = F.linear(x, self.attn_q).view(b, t, c.n_head, c.head_dim)
        k = F.linear(x, self.attn_k).view(b, t, c.n_head_kv, c.head_dim)
        v = F.linear(x, self.attn_v).view(b, t, c.n_head_kv, c.head_dim).transpose(1, 2)
        q = rope(rms_norm(q, self.attn_q_norm, c.rms_eps).transpose(1, 2), cos, sin).to(v.dtype)
        k = rope(rms_norm(k, self.attn_k_norm, c.rms_eps).transpose(1, 2), cos, sin).to(v.dtype)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return F.linear(y.transpose(1, 2).reshape(b, t, -1), self.attn_output)

    def experts(self, x: torch.Tensor, watch=None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Computes the chosen experts only; tokens are grouped by expert.

        x (N, n_embd) -> output (N, n_embd), balance loss, share of the slots of each expert (n_expert,)
        """
        c = self.c
        with torch.autocast("cpu", enabled=False):
            logits = F.linear(x.float(), self.ffn_gate_inp)
        probs = logits.softmax(-1)
        weights, ids = probs.topk(c.n_expert_used, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        order = ids.flatten().argsort(stable=True)
        counts = ids.flatten().bincount(minlength=c.n_expert)
        rows = order // c.n_expert_used
        share = counts / counts.sum()
        balance = c.n_expert * (share * probs.mean(0)).sum() + 0.01 * logits.logsumexp(-1).square().mean()
        gathered = x[rows]
        gate, up, down = self.ffn_gate_exps.unbind(), self.ffn_up_exps.unbind(), self.ffn_down_exps.unbind()
        parts = []
        for e, part in enumerate(gathered.split(counts.tolist())):
            if len(part):
                hidden = F.silu(F.linear(part, gate[e])) * F.linear(part, up[e])
                parts.append(F.linear(hidden, down[e]))
                if watch:
                    watch("ffn_gate_exps", e, part)
                    watch("ffn_down_exps", e, hidden)
        y = torch.cat(parts).float() * weights.flatten()[order, None]
        return torch.zeros_like(x, dtype=torch.float32).index_add(0, rows, y), balance, share


class TalesModel(nn.Module):
    def __init__(self, c: Config = Config()):
        super().__init__()
        self.c = c
        self.token_embd = nn.Parameter(torch.randn(c.n_vocab, c.n_embd) * 0.5 * c.n_embd**-0.5)
        self.output_norm = nn.Parameter(torch.ones(c.n_embd))
        self.blk = nn.ModuleList(Layer(c) for _ in range(c.n_layer))

    def forward(self, tokens: torch.Tensor, watch=None):
        """tokens int64 (B, T) -> (logits float32 (B, T, n_vocab), balance loss, shares float32 (n_layer, n_expert))."""
        c = self.c
        cos, sin = rope_tables(tokens.shape[1], c.head_dim, c.rope_base)
        x = F.embedding(tokens, self.token_embd)
        balance, shares = 0.0, []
        for il, layer in enumerate(self.blk):
            h = rms_norm(x, layer.attn_norm, c.rms_eps)
            x = x + layer.attention(h, cos, sin).float()
            h = rms_norm(x, layer.ffn_norm, c.rms_eps)
            seen = watch and (lambda name, e, v, il=il: watch(f"blk.{il}.{name}", e, v))
            y, loss, share = layer.experts(h.flatten(0, 1), seen)
            x = x + y.view_as(x)
            balance = balance + loss
            shares.append(share)
        with torch.autocast("cpu", enabled=False):
            logits = F.linear(rms_norm(x, self.output_norm, c.rms_eps), self.token_embd)
        return logits, balance / c.n_layer, torch.stack(shares)
