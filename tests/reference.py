"""A slow forward pass in NumPy, float64, written from the papers: the oracle of the graph tests.

It shares no code with moeengine. Weights are dequantized and activations stay exact, so quantized
models differ from it by the rounding of activations; F32 models by float32 arithmetic only.
"""

import numpy as np


def rms_norm(x, w, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * w


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def silu(x):
    return x / (1 + np.exp(-x))


def rope(x, pos, *, n_rot, base, neox, factors=None, scale=1.0, yarn=None):
    """x (T, H, D); rotates the first n_rot values. yarn: (low, high, magnitude) or None."""
    i = np.arange(n_rot // 2)
    extrap = pos[:, None] * base ** (-2.0 * i / n_rot)
    if factors is not None:
        extrap = extrap / factors
    angle, magnitude = extrap * scale, 1.0
    if yarn is not None:
        low, high, magnitude = yarn
        ramp = 1 - np.clip((i - low) / max(0.001, high - low), 0, 1)
        angle = angle * (1 - ramp) + extrap * ramp
    c, s = np.cos(angle)[:, None] * magnitude, np.sin(angle)[:, None] * magnitude
    y = x.copy()
    a, b = (x[..., : n_rot // 2], x[..., n_rot // 2 : n_rot]) if neox else (x[..., 0:n_rot:2], x[..., 1:n_rot:2])
    first, second = a * c - b * s, a * s + b * c
    if neox:
        y[..., : n_rot // 2], y[..., n_rot // 2 : n_rot] = first, second
    else:
        y[..., 0:n_rot:2], y[..., 1:n_rot:2] = first, second
    return y


class Reference:
    """get(name) -> float32 array or None; hp: the keys below; arch: general.architecture."""

    def __init__(self, arch, hp, get, *, rope_options=None):
        self.arch, self.hp, self.get, self.rope_options = arch, hp, get, rope_options or {}

    def __call__(self, tokens):
        """tokens (T,) -> logits (T, V) float64."""
        hp = self.hp
        x = self.need("token_embd.weight")[tokens]
        for il in range(hp["n_layer"]):
            x = x + self.attention(il, rms_norm(x, self.need(f"blk.{il}.attn_norm.weight"), hp["eps"]))
            h = rms_norm(x, self.need(f"blk.{il}.ffn_norm.weight"), hp["eps"])
            x = x + (self.moe(il, h) if self.get(f"blk.{il}.ffn_gate_inp.weight") is not None else self.ffn(il, h))
        x = rms_norm(x, self.need("output_norm.weight"), hp["eps"])
        head = self.get("output.weight")
        return x @ np.asarray(self.need("token_embd.weight") if head is None else head, np.float64).T

    def need(self, name):
        w = self.get(name)
        assert w is not None, name
        return np.asarray(w, np.float64)

    def linear(self, x, name):
        y = x @ self.need(name + ".weight").T
        for suffix, op in ((".scale", np.multiply), (".bias", np.add)):
            if self.get(name + suffix) is not None:
                y = op(y, self.need(name + suffix))
        return y

    def attention(self, il, x):
        hp, blk = self.hp, f"blk.{il}."
        H, K, D, T = hp["n_head"], hp["n_head_kv"], hp["head_dim"], len(x)
        q, k, v = (self.linear(x, f"{blk}attn_{n}") for n in "qkv")
        if self.arch == "olmoe":
            q = rms_norm(q, self.need(blk + "attn_q_norm.weight"), hp["eps"])
            k = rms_norm(k, self.need(blk + "attn_k_norm.weight"), hp["eps"])
        q, k, v = q.reshape(T, H, D), k.reshape(T, K, D), v.reshape(T, K, D)
        if self.arch in ("qwen3", "qwen3moe"):
            q = rms_norm(q, self.need(blk + "attn_q_norm.weight"), hp["eps"])
            k = rms_norm(k, self.need(blk + "attn_k_norm.weight"), hp["eps"])
        options = dict(n_rot=hp["n_rot"], base=hp["rope_freq_base"], neox=self.arch != "llama",
                       factors=self.get("rope_freqs.weight"), **self.rope_options)  # fmt: skip
        pos = np.arange(T)
        q, k = rope(q, pos, **options), rope(k, pos, **options)
        k, v = k.astype(np.float16).astype(np.float64), v.astype(np.float16).astype(np.float64)
        out = np.empty((T, H, D))
        for h in range(H):
            s = q[:, h] @ k[:, h // (H // K)].T / np.sqrt(D)
            s[np.triu_indices(T, 1)] = -np.inf
            out[:, h] = softmax(s) @ v[:, h // (H // K)]
        return self.linear(out.reshape(T, H * D), blk + "attn_output")

    def ffn(self, il, x, suffix=""):
        blk = f"blk.{il}.ffn_"
        hidden = silu(self.linear(x, f"{blk}gate{suffix}")) * self.linear(x, f"{blk}up{suffix}")
        return self.linear(hidden, f"{blk}down{suffix}")

    def experts(self, il):
        """[(gate, up, down)] of every expert, tiers in order, each float64 with its scales applied."""
        found = []
        for tier in ("", "_tier1", "_tier2", "_tier3"):
            stem = f"blk.{il}.ffn_"
            down = self.get(f"{stem}down_exps{tier}.weight")
            if down is None:
                break
            fused = self.get(f"{stem}gate_up_exps{tier}.weight")
            if fused is not None:
                half = fused.shape[1] // 2
                gate, up = fused[:, :half], fused[:, half:]
            else:
                gate, up = self.get(f"{stem}gate_exps{tier}.weight"), self.get(f"{stem}up_exps{tier}.weight")
            parts = []
            for name, w in (("gate", gate), ("up", up), ("down", down)):
                scale = self.get(f"{stem}{name}_exps{tier}.scale") if self.arch in ("llama", "qwen3moe") else None
                w = np.asarray(w, np.float64)
                parts.append(w if scale is None else w * np.asarray(scale, np.float64).reshape(-1, 1, 1))
            found += list(zip(*parts))
        return found

    def moe(self, il, x):
        hp, blk = self.hp, f"blk.{il}."
        probs = softmax(x @ self.need(blk + "ffn_gate_inp.weight").T)
        ids = np.argsort(-probs, axis=-1, kind="stable")[:, : hp["n_expert_used"]]
        weights = np.take_along_axis(probs, ids, -1)
        if self.arch in ("llama", "qwen3moe"):
            weights = weights / np.maximum(weights.sum(-1, keepdims=True), 6.103515625e-5)
        weights = weights * hp.get("expert_weights_scale", 1.0)
        experts = self.experts(il)
        out = np.zeros_like(x)
        for t in range(len(x)):
            for e, w in zip(ids[t], weights[t]):
                gate, up, down = experts[e]
                hidden = silu(gate @ x[t]) * (up @ x[t])
                out[t] += w * (down[:, : len(hidden)] @ hidden)
        if self.arch == "qwen2moe":
            shared_gate = 1 / (1 + np.exp(-(x @ self.need(blk + "ffn_gate_inp_shexp.weight").reshape(-1))))
            out += shared_gate[:, None] * self.ffn(il, x, "_shexp")
        return out


def reference_of(tiny, *, hparams=None, **options):
    """Reference over a tests.tiny.Tiny; `hparams` replaces some of its hyper-parameters."""
    meta, key = tiny.metadata, f"{tiny.arch}."
    hp = dict(tiny.hparams)
    hp["eps"] = meta[key + "attention.layer_norm_rms_epsilon"]
    hp["rope_freq_base"] = meta.get(key + "rope.freq_base", 10000.0)
    hp["n_rot"] = meta.get(key + "rope.dimension_count", hp["head_dim"])
    hp |= hparams or {}
    return Reference(tiny.arch, hp, lambda name: tiny.weight(name) if name in tiny.tensors else None, **options)
