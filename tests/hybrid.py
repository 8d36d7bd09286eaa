"""Tiny models whose layers are gated delta nets and gated attention: their tensors and keys, and quantized ones with random
weights whose logits by stock llama.cpp are recorded (tools/record_archs.py)."""

import gguf
import numpy as np

from tests.tiny import Tiny, write_gguf
from tests.tiny_weights import random_weights

QType = gguf.GGMLQuantizationType
NORMS = ("attn_norm", "post_attention_norm", "attn_q_norm", "attn_k_norm", "ssm_norm", "output_norm")
SIZES = dict(
    n_layer=4, n_embd=256, n_vocab=64, n_head=4, n_head_kv=2, head_dim=64, n_rot=32, n_expert=8, n_expert_used=2, n_ff=256,
    n_head_k=2, n_head_v=4, dim=64, n_taps=4, interval=4,
)  # fmt: skip
# Types by part of a tensor's name, the longest part that fits; the others are Q4_K. Blocks as long as a row: a sum of many
# depends on the processor that stock runs on.
TYPES = {"_exps": "IQ2_XXS", "down_exps": "IQ3_XXS", "gate_inp_shexp": "IQ2_XXS", "ffn_gate_inp.": "F32", "ssm_out": "Q6_K",
         "attn_output": "Q6_K", "attn_gate": "Q5_K", "ssm_beta": "F32", "ssm_alpha": "F32", "ssm_ba": "F32", "conv1d": "F32"}  # fmt: skip
# Architecture and seed. In most random models some activation soon lies so near to the middle of two codes that the last bit
# of a sum decides, and all that follows differs by 1e-4; in these few do.
HYBRID_MODELS = {"qwen35moe-quantized": ("qwen35moe", 1), "qwen3next-quantized": ("qwen3next", 13), "qwen35-quantized": ("qwen35", 11)}


def layer(arch, hp, il):
    """{name: row-major shape} of a layer. hp: as SIZES; every `interval`-th layer is attention."""
    E, G, X, D, dim, n_v = hp["n_embd"], hp["n_ff"], hp["n_expert"], hp["head_dim"], hp["dim"], hp["n_head_v"]
    channels = (2 * hp["n_head_k"] + n_v) * dim
    if (il + 1) % hp["interval"] == 0:
        mixer = {
            "attn_q.weight": (2 * hp["n_head"] * D, E), "attn_k.weight": (hp["n_head_kv"] * D, E),
            "attn_v.weight": (hp["n_head_kv"] * D, E), "attn_output.weight": (E, hp["n_head"] * D),
            "attn_q_norm.weight": (D,), "attn_k_norm.weight": (D,),
        }  # fmt: skip
    else:
        mixer = {
            "attn_qkv.weight": (channels, E), "attn_gate.weight": (n_v * dim, E), "ssm_conv1d.weight": (channels, hp["n_taps"]),
            "ssm_dt.bias": (n_v,), "ssm_a": (n_v,), "ssm_norm.weight": (dim,), "ssm_out.weight": (E, n_v * dim),
        }  # fmt: skip
        gates = {"ssm_ba": 2 * n_v} if arch == "qwen3next" else {"ssm_beta": n_v, "ssm_alpha": n_v}
        mixer |= {f"{name}.weight": (n, E) for name, n in gates.items()}
    if arch == "qwen35":
        ffn = {"ffn_gate.weight": (G, E), "ffn_up.weight": (G, E), "ffn_down.weight": (E, G)}
    else:
        ffn = {
            "ffn_gate_inp.weight": (X, E), "ffn_gate_exps.weight": (X, G, E), "ffn_up_exps.weight": (X, G, E),
            "ffn_down_exps.weight": (X, E, G), "ffn_gate_inp_shexp.weight": (E,), "ffn_gate_shexp.weight": (G, E),
            "ffn_up_shexp.weight": (G, E), "ffn_down_shexp.weight": (E, G),
        }  # fmt: skip
    return {"attn_norm.weight": (E,)} | mixer | {"post_attention_norm.weight": (E,)} | ffn


def kind(name):
    """What values a tensor has: "norm", "decay", "conv", "router", "bias" or "matrix"."""
    role = name.removesuffix(".weight").split(".")[-1]
    if role in NORMS:
        return "norm"
    return {"ssm_a": "decay", "ssm_conv1d": "conv", "ffn_gate_inp": "router", "bias": "bias"}.get(role, "matrix")


def decay(rng, shape):
    """Values of ssm_a: heads that forget within a few tokens, and heads that hardly do."""
    return -np.exp(rng.uniform(-4, 1, shape)).astype(np.float32)


def keys(arch, hp):
    """Metadata without the architecture's prefix; None: the architecture has no such key."""
    found = {
        "context_length": 4096, "embedding_length": hp["n_embd"], "block_count": hp["n_layer"], "feed_forward_length": hp["n_ff"],
        "attention.head_count": hp["n_head"], "attention.head_count_kv": hp["n_head_kv"],
        "attention.key_length": hp["head_dim"], "attention.value_length": hp["head_dim"],
        "attention.layer_norm_rms_epsilon": 1e-6, "rope.freq_base": 10000.0, "rope.dimension_count": hp["n_rot"],
        "vocab_size": hp["n_vocab"], "full_attention_interval": hp["interval"],
        "ssm.conv_kernel": hp["n_taps"], "ssm.inner_size": hp["n_head_v"] * hp["dim"], "ssm.state_size": hp["dim"],
        "ssm.time_step_rank": hp["n_head_v"], "ssm.group_count": hp["n_head_k"],
    }  # fmt: skip
    if arch != "qwen3next":
        n = hp["n_rot"] // 2
        found["rope.dimension_sections"] = [(n + 2) // 3, (n + 1) // 3, n // 3, 0]
    experts = {"expert_count": hp["n_expert"], "expert_used_count": hp["n_expert_used"],
               "expert_feed_forward_length": hp["n_ff"], "expert_shared_feed_forward_length": hp["n_ff"]}  # fmt: skip
    return found | (dict.fromkeys(experts) if arch == "qwen35" else experts)


def write_hybrid(path, name="qwen35moe", *, types=None, metadata=None, tensors=None, **sizes):
    """Write a model of HYBRID_MODELS or an architecture, and return a Tiny. Without a tokenizer: token ids only.

    types : dict         {part of a tensor's name: type}, beside and before TYPES
    metadata : dict      keys without the architecture's prefix, to add or replace; None removes the key
    tensors : dict       name -> float32 array (written F32), to add or replace; None removes
    sizes                as SIZES
    """
    arch, seed = HYBRID_MODELS.get(name, (name, 0))
    hp, rng = SIZES | sizes, np.random.default_rng(seed)
    E, V = hp["n_embd"], hp["n_vocab"]
    rows = {"token_embd.weight": (V, E), "output_norm.weight": (E,), "output.weight": (V, E)}
    rows |= {f"blk.{il}.{part}": shape for il in range(hp["n_layer"]) for part, shape in layer(arch, hp, il).items()}
    made = {row: _values(rng, row, shape, TYPES | (types or {})) for row, shape in rows.items()}
    made |= {row: None if array is None else (np.asarray(array, np.float32), QType.F32) for row, array in (tensors or {}).items()}
    meta = {f"{arch}.{key}": value for key, value in (keys(arch, hp) | (metadata or {})).items()}
    meta |= {"general.name": f"tiny {name}", "tokenizer.ggml.model": "none"}
    made, meta = ({key: value for key, value in d.items() if value is not None} for d in (made, meta))
    return Tiny(write_gguf(path, arch, meta, made), arch, hp, meta, made)


def _values(rng, name, shape, types):
    what = kind(name)
    if what == "decay":
        return decay(rng, shape), QType.F32
    if what in ("norm", "bias"):
        return ((what == "norm") + 0.1 * rng.standard_normal(shape)).astype(np.float32), QType.F32
    fits = [part for part in types if part in name]
    qtype = QType[types[max(fits, key=len)] if fits else "Q4_K"]
    std = 0.5 if what == "conv" else 1.0 if "token_embd" in name else 1.5 * shape[-1] ** -0.5
    return random_weights(rng, shape, qtype, std), qtype
