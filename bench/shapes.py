"""Shapes of published MoE models: hyper-parameters, tensor list and metadata. No weights here."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """Hyper-parameters of one model; letters in STYLE's table of names."""

    arch: str
    n_embd: int
    n_layer: int
    n_head: int
    n_head_kv: int
    head_dim: int
    n_expert: int
    n_expert_used: int
    n_ff_exp: int
    n_vocab: int
    rope_freq_base: float
    rms_eps: float
    n_ctx_train: int
    n_ff: int
    n_ff_shexp: int = 0
    qkv_bias: bool = False
    qk_norm: str = ""  # "head": one weight a head dimension; "row": one weight a column


# Source: config.json of the named models on Hugging Face.
PRESETS = {
    "qwen3-30b-a3b": Shape(
        "qwen3moe", 2048, 48, 32, 4, 128, 128, 8, 768, 151936, 1e6, 1e-6, 40960, 6144, qk_norm="head"
    ),
    "mixtral-8x7b": Shape("llama", 4096, 32, 32, 8, 128, 8, 2, 14336, 32000, 1e6, 1e-5, 32768, 14336),
    "olmoe": Shape(
        "olmoe", 2048, 16, 16, 16, 128, 64, 8, 1024, 50304, 1e4, 1e-5, 4096, 1024, qk_norm="row"
    ),
    "qwen2moe-14b": Shape(
        "qwen2moe", 2048, 24, 16, 16, 128, 60, 4, 1408, 151936, 1e6, 1e-6, 8192, 5632,
        n_ff_shexp=5632, qkv_bias=True,
    ),
    "small": Shape(
        "qwen3moe", 1024, 4, 8, 2, 128, 32, 4, 512, 8192, 1e6, 1e-6, 8192, 2048, qk_norm="head"
    ),
}


@dataclass(frozen=True)
class Tensor:
    """One tensor to write. `role` is its name without layer number and ending ("attn_q")."""

    name: str
    shape: tuple[int, ...]  # row-major; the last axis is contiguous
    role: str
    il: int  # layer, -1 for tensors outside the layers


def tensors(s: Shape) -> list[Tensor]:
    """List every tensor of `s` in the order of stock's quantize: by layer, then by name."""
    out = [
        Tensor("output.weight", (s.n_vocab, s.n_embd), "output", -1),
        Tensor("output_norm.weight", (s.n_embd,), "output_norm", -1),
        Tensor("token_embd.weight", (s.n_vocab, s.n_embd), "token_embd", -1),
    ]
    for il in range(s.n_layer):
        layer = [
            Tensor(f"blk.{il}.{role}{'' if role.endswith('.bias') else '.weight'}", shape, role, il)
            for role, shape in _layer(s).items()
        ]
        out += sorted(layer, key=lambda t: t.name)
    return out


def _layer(s: Shape) -> dict[str, tuple[int, ...]]:
    n_q, n_kv = s.n_head * s.head_dim, s.n_head_kv * s.head_dim
    layer = {
        "attn_norm": (s.n_embd,),
        "attn_q": (n_q, s.n_embd),
        "attn_k": (n_kv, s.n_embd),
        "attn_v": (n_kv, s.n_embd),
        "attn_output": (s.n_embd, n_q),
        "ffn_norm": (s.n_embd,),
        "ffn_gate_inp": (s.n_expert, s.n_embd),
        "ffn_gate_exps": (s.n_expert, s.n_ff_exp, s.n_embd),
        "ffn_up_exps": (s.n_expert, s.n_ff_exp, s.n_embd),
        "ffn_down_exps": (s.n_expert, s.n_embd, s.n_ff_exp),
    }
    if s.qk_norm:
        head = s.qk_norm == "head"
        layer |= {"attn_q_norm": (s.head_dim if head else n_q,)}
        layer |= {"attn_k_norm": (s.head_dim if head else n_kv,)}
    if s.qkv_bias:
        layer |= {"attn_q.bias": (n_q,), "attn_k.bias": (n_kv,), "attn_v.bias": (n_kv,)}
    if s.n_ff_shexp:
        layer |= {
            "ffn_gate_inp_shexp": (s.n_embd,),
            "ffn_gate_shexp": (s.n_ff_shexp, s.n_embd),
            "ffn_up_shexp": (s.n_ff_shexp, s.n_embd),
            "ffn_down_shexp": (s.n_embd, s.n_ff_shexp),
        }
    return layer


def add_metadata(writer, s: Shape) -> None:
    """Write the hyper-parameters of `s` to a `gguf.GGUFWriter` opened for `s.arch`."""
    writer.add_name(f"synthetic {s.arch}, {s.n_layer} layers, random weights")
    writer.add_context_length(s.n_ctx_train)
    writer.add_embedding_length(s.n_embd)
    writer.add_block_count(s.n_layer)
    writer.add_feed_forward_length(s.n_ff)
    writer.add_expert_feed_forward_length(s.n_ff_exp)
    writer.add_expert_count(s.n_expert)
    writer.add_expert_used_count(s.n_expert_used)
    if s.n_ff_shexp:
        writer.add_expert_shared_feed_forward_length(s.n_ff_shexp)
    writer.add_head_count(s.n_head)
    writer.add_head_count_kv(s.n_head_kv)
    writer.add_key_length(s.head_dim)
    writer.add_value_length(s.head_dim)
    writer.add_rope_dimension_count(s.head_dim)
    writer.add_rope_freq_base(s.rope_freq_base)
    writer.add_layer_norm_rms_eps(s.rms_eps)
    writer.add_vocab_size(s.n_vocab)
