"""Shapes of published MoE models: hyper-parameters, tensor list and metadata. No weights here."""

from dataclasses import dataclass, field


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
    n_lora: int = 0  # latent attention: rank of keys and values; head_dim is without the n_rot rotated ones
    n_lora_q: int = 0
    n_rot: int = 0
    head_dim_v: int = 0
    n_layer_dense_lead: int = 0
    n_expert_shared: int = 0
    biases: bool = False  # of attention, router and experts
    sinks: bool = False
    delta: dict = field(default_factory=dict)  # gated delta nets in three layers of four: n_head_k, n_head_v, dim, n_taps
    keys: dict = field(default_factory=dict)  # more metadata, without the architecture's prefix

    def is_recurrent(self, il: int) -> bool:
        return bool(self.delta) and il % 4 != 3


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
    "deepseek-v2-lite": Shape(
        "deepseek2", 2048, 27, 16, 1, 128, 64, 6, 1408, 102400, 1e4, 1e-6, 4096, 10944, n_ff_shexp=2816,
        n_lora=512, n_rot=64, head_dim_v=128, n_layer_dense_lead=1, n_expert_shared=2,
    ),
    "glm-4.7-flash": Shape(
        "deepseek2", 2048, 47, 20, 1, 192, 64, 4, 1536, 154880, 1e6, 1e-5, 202752, 10240, n_ff_shexp=1536,
        n_lora=512, n_lora_q=768, n_rot=64, head_dim_v=256, n_layer_dense_lead=1, n_expert_shared=1,
    ),
    "gpt-oss-20b": Shape(
        "gpt-oss", 2880, 24, 64, 8, 64, 32, 4, 2880, 201088, 150000.0, 1e-5, 131072, 2880, biases=True, sinks=True,
        keys={"attention.sliding_window": 128, "rope.scaling.type": "yarn", "rope.scaling.factor": 32.0,
              "rope.scaling.original_context_length": 4096},
    ),
    "qwen3.5-35b-a3b": Shape(
        "qwen35moe", 2048, 40, 16, 2, 256, 256, 8, 512, 248320, 1e7, 1e-6, 262144, 5632, qk_norm="head", n_ff_shexp=512, n_rot=64,
        delta={"n_head_k": 16, "n_head_v": 32, "dim": 128, "n_taps": 4},
        keys={"ssm.conv_kernel": 4, "ssm.state_size": 128, "ssm.group_count": 16, "ssm.time_step_rank": 32, "ssm.inner_size": 4096,
              "full_attention_interval": 4, "rope.dimension_sections": [11, 11, 10, 0]},
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
            Tensor(f"blk.{il}.{role}{'' if role.endswith('.bias') or role == 'ssm_a' else '.weight'}", shape, role, il)
            for role, shape in _layer(s, il).items()
        ]
        out += sorted(layer, key=lambda t: t.name)
    return out


def _layer(s: Shape, il: int) -> dict[str, tuple[int, ...]]:
    second = "post_attention_norm" if s.sinks or s.delta else "ffn_norm"
    layer = {"attn_norm": (s.n_embd,), second: (s.n_embd,)}
    layer |= _delta_net(s) if s.is_recurrent(il) else _latent_attention(s) if s.n_lora else _attention(s)
    if il < s.n_layer_dense_lead:
        return layer | _gated(s, "", s.n_ff)
    layer |= {"ffn_gate_inp": (s.n_expert, s.n_embd)}
    layer |= {role: (s.n_expert, *shape) for role, shape in _gated(s, "_exps", s.n_ff_exp).items()}
    if s.biases:
        layer |= {f"{role}.bias": shape[:-1] for role, shape in layer.items() if role.startswith("ffn_") and len(shape) > 1}
    if s.n_ff_shexp:
        layer |= _gated(s, "_shexp", s.n_ff_shexp)
        layer |= {} if s.n_expert_shared else {"ffn_gate_inp_shexp": (s.n_embd,)}
    return layer


def _gated(s: Shape, suffix: str, n_ff: int) -> dict[str, tuple[int, ...]]:
    shapes = {"gate": (n_ff, s.n_embd), "up": (n_ff, s.n_embd), "down": (s.n_embd, n_ff)}
    return {f"ffn_{part}{suffix}": shape for part, shape in shapes.items()}


def _attention(s: Shape) -> dict[str, tuple[int, ...]]:
    n_q, n_kv = s.n_head * s.head_dim, s.n_head_kv * s.head_dim
    layer = {
        "attn_q": (2 * n_q if s.delta else n_q, s.n_embd),  # with the gates of its results
        "attn_k": (n_kv, s.n_embd),
        "attn_v": (n_kv, s.n_embd),
        "attn_output": (s.n_embd, n_q),
    }
    if s.qk_norm:
        head = s.qk_norm == "head"
        layer |= {"attn_q_norm": (s.head_dim if head else n_q,)}
        layer |= {"attn_k_norm": (s.head_dim if head else n_kv,)}
    if s.qkv_bias or s.biases:
        layer |= {"attn_q.bias": (n_q,), "attn_k.bias": (n_kv,), "attn_v.bias": (n_kv,)}
    if s.biases:
        layer |= {"attn_output.bias": (s.n_embd,)}
    if s.sinks:
        layer |= {"attn_sinks": (s.n_head,)}
    return layer


def _delta_net(s: Shape) -> dict[str, tuple[int, ...]]:
    n_k, n_v, dim = (s.delta[key] for key in ("n_head_k", "n_head_v", "dim"))
    channels = (2 * n_k + n_v) * dim
    return {
        "attn_qkv": (channels, s.n_embd), "attn_gate": (n_v * dim, s.n_embd), "ssm_alpha": (n_v, s.n_embd),
        "ssm_beta": (n_v, s.n_embd), "ssm_conv1d": (channels, s.delta["n_taps"]), "ssm_out": (s.n_embd, n_v * dim),
        "ssm_norm": (dim,), "ssm_dt.bias": (n_v,), "ssm_a": (n_v,),
    }  # fmt: skip


def _latent_attention(s: Shape) -> dict[str, tuple[int, ...]]:
    n_q = s.n_head * (s.head_dim + s.n_rot)
    layer = {
        "attn_kv_a_mqa": (s.n_lora + s.n_rot, s.n_embd),
        "attn_kv_a_norm": (s.n_lora,),
        "attn_k_b": (s.n_head, s.n_lora, s.head_dim),
        "attn_v_b": (s.n_head, s.head_dim_v, s.n_lora),
        "attn_output": (s.n_embd, s.n_head * s.head_dim_v),
    }
    if not s.n_lora_q:
        return layer | {"attn_q": (n_q, s.n_embd)}
    return layer | {
        "attn_q_a": (s.n_lora_q, s.n_embd), "attn_q_a_norm": (s.n_lora_q,), "attn_q_b": (n_q, s.n_lora_q),
    }  # fmt: skip


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
    if s.n_expert_shared:
        writer.add_expert_shared_count(s.n_expert_shared)
        writer.add_leading_dense_block_count(s.n_layer_dense_lead)
    elif s.n_ff_shexp:
        writer.add_expert_shared_feed_forward_length(s.n_ff_shexp)
    writer.add_head_count(s.n_head)
    writer.add_head_count_kv(s.n_head_kv)
    writer.add_key_length(s.n_lora + s.n_rot if s.n_lora else s.head_dim)
    writer.add_value_length(s.n_lora or s.head_dim)
    writer.add_rope_dimension_count(s.n_rot or s.head_dim)
    if s.n_lora:
        writer.add_kv_lora_rank(s.n_lora)
        writer.add_q_lora_rank(s.n_lora_q)
        writer.add_key_length_mla(s.head_dim + s.n_rot)
        writer.add_value_length_mla(s.head_dim_v)
    writer.add_rope_freq_base(s.rope_freq_base)
    writer.add_layer_norm_rms_eps(s.rms_eps)
    writer.add_vocab_size(s.n_vocab)
    for key, value in s.keys.items():
        add = {str: writer.add_string, int: writer.add_uint32, float: writer.add_float32, list: writer.add_array}[type(value)]
        add(f"{s.arch}.{key}", value)
