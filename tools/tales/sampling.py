"""Samples many texts at once from the training model, with a key and value cache."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from .torch_model import TalesModel, rms_norm, rope, rope_tables


@torch.no_grad()
def sample(
    model: TalesModel, prompts: list[list[int]], stop: set[int], *, temperature: float, seed: int, n_tokens: int = 260
) -> list[list[int]]:
    """Continues every prompt until a token of `stop` or `n_tokens`; returns the new ids without the stop token.

    Prompts may differ in length: shorter ones are sampled from earlier, all rows step together.
    """
    c, n = model.c, len(prompts)
    generator = torch.Generator().manual_seed(seed)
    longest = max(map(len, prompts)) + n_tokens
    cos, sin = rope_tables(longest, c.head_dim, c.rope_base)
    keys = torch.zeros(c.n_layer, n, c.n_head_kv, longest, c.head_dim)
    values = torch.zeros_like(keys)
    out: list[list[int]] = [[] for _ in prompts]
    done = [False] * n
    current = torch.tensor([p[0] for p in prompts])
    for pos in range(longest - 1):
        logits = _step(model, current, pos, keys, values, cos, sin)
        probs = (logits / temperature).softmax(-1)
        drawn = torch.multinomial(probs, 1, generator=generator)[:, 0].tolist()
        for i, prompt in enumerate(prompts):
            if pos + 1 < len(prompt):
                drawn[i] = prompt[pos + 1]
            elif not done[i]:
                done[i] = drawn[i] in stop or len(out[i]) >= n_tokens
                if not done[i]:
                    out[i].append(drawn[i])
        if all(done):
            break
        current = torch.tensor(drawn)
    return out


def _step(model: TalesModel, tokens, pos: int, keys, values, cos, sin):
    """One token for every row at position `pos`; returns logits float32 (B, n_vocab)."""
    c = model.c
    x = model.token_embd[tokens]
    for il, layer in enumerate(model.blk):
        h = rms_norm(x, layer.attn_norm, c.rms_eps)
        q = F.linear(h, layer.attn_q).view(-1, c.n_head, 1, c.head_dim)
        k = F.linear(h, layer.attn_k).view(-1, c.n_head_kv, 1, c.head_dim)
        q = rope(rms_norm(q, layer.attn_q_norm, c.rms_eps), cos[pos : pos + 1], sin[pos : pos + 1])
        keys[il, :, :, pos] = rope(rms_norm(k, layer.attn_k_norm, c.rms_eps), cos[pos : pos + 1], sin[pos : pos + 1])[
            :, :, 0
        ]
        values[il, :, :, pos] = F.linear(h, layer.attn_v).view(-1, c.n_head_kv, c.head_dim)
        y = F.scaled_dot_product_attention(q, keys[il, :, :, : pos + 1], values[il, :, :, : pos + 1], enable_gqa=True)
        x = x + F.linear(y.reshape(len(x), -1), layer.attn_output)
        x = x + layer.experts(rms_norm(x, layer.ffn_norm, c.rms_eps))[0]
    return F.linear(rms_norm(x, model.output_norm, c.rms_eps), model.token_embd)
