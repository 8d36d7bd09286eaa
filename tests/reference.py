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


def swiglu_oai(gate, up):
    gate = np.minimum(gate, 7)
    return gate / (1 + np.exp(-1.702 * gate)) * (np.clip(up, -7, 7) + 1)


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
            norm = "post_attention_norm" if self.arch == "gpt-oss" else "ffn_norm"
            h = rms_norm(x, self.need(f"blk.{il}.{norm}.weight"), hp["eps"])
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
            if self.arch == "gpt-oss":
                if il % 2 == 0:  # every second layer has a sliding window
                    s[pos[:, None] - pos >= hp["window"]] = -np.inf
                sink = np.full((T, 1), self.need(blk + "attn_sinks.weight")[h])
                out[:, h] = softmax(np.concatenate([s, sink], 1))[:, :T] @ v[:, h // (H // K)]
                continue
            out[:, h] = softmax(s) @ v[:, h // (H // K)]
        return self.linear(out.reshape(T, H * D), blk + "attn_output")

    def ffn(self, il, x, suffix=""):
        blk = f"blk.{il}.ffn_"
        hidden = silu(self.linear(x, f"{blk}gate{suffix}")) * self.linear(x, f"{blk}up{suffix}")
        return self.linear(hidden, f"{blk}down{suffix}")

    def experts(self, il):
        """[(gate, up, down, biases)] of every expert, tiers in order: float64 with scales applied; biases of the three, or 0."""
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
            found += list(zip(*parts, self.expert_biases(stem, tier, len(down))))
        return found

    def expert_biases(self, stem, tier, n_expert):
        gate, up, down = (self.get(f"{stem}{part}_exps{tier}.bias") for part in ("gate", "up", "down"))
        fused = self.get(f"{stem}gate_up_exps{tier}.bias")
        if fused is not None:
            gate, up = np.split(np.asarray(fused), 2, axis=1)
        return [[0 if b is None else np.asarray(b[e], np.float64) for b in (gate, up, down)] for e in range(n_expert)]

    def moe(self, il, x):
        hp, blk, is_oai = self.hp, f"blk.{il}.", self.arch == "gpt-oss"
        probs = self.linear(x, blk + "ffn_gate_inp")
        if not is_oai:
            probs = softmax(probs)
        ids = np.argsort(-probs, axis=-1, kind="stable")[:, : hp["n_expert_used"]]
        weights = np.take_along_axis(probs, ids, -1)
        if is_oai:
            weights = softmax(weights)
        if self.arch in ("llama", "qwen3moe"):
            weights = weights / np.maximum(weights.sum(-1, keepdims=True), 6.103515625e-5)
        weights = weights * hp.get("expert_weights_scale", 1.0)
        experts, gated = self.experts(il), swiglu_oai if is_oai else lambda gate, up: silu(gate) * up
        out = np.zeros_like(x)
        for t in range(len(x)):
            for e, w in zip(ids[t], weights[t]):
                gate, up, down, bias = experts[e]
                hidden = gated(gate @ x[t] + bias[0], up @ x[t] + bias[1])
                out[t] += w * (down[:, : len(hidden)] @ hidden + bias[2])
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
    hp["window"] = meta.get(key + "attention.sliding_window")
    hp |= hparams or {}
    if meta.get(key + "rope.scaling.type") == "yarn" and "rope_options" not in options:
        options["rope_options"] = yarn_options(meta, key, hp)
    return Reference(tiny.arch, hp, lambda name: tiny.weight(name) if name in tiny.tensors else None, **options)


def yarn_options(meta, key, hp):
    """Options of `rope` by the paper: a ramp between 32 and 1 turns within the original context, magnitude 0.1 ln s + 1."""
    factor, n_orig = meta[key + "rope.scaling.factor"], meta[key + "rope.scaling.original_context_length"]
    base, n_rot = hp["rope_freq_base"], hp["n_rot"]
    fast, slow = (n_rot * np.log(n_orig / (turns * 2 * np.pi)) / (2 * np.log(base)) for turns in (32, 1))
    low, high = max(0, np.floor(fast)), min(n_rot - 1, np.ceil(slow))
    return {"scale": 1 / factor, "yarn": (low, high, 1 + 0.1 * np.log(factor))}
