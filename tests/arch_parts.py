"""What the recipes of tests/arch_models.py are made of: sizes, and the rows (name, row-major shape, kind) of parts of a layer."""

from dataclasses import dataclass

import gguf

QType = gguf.GGMLQuantizationType
E, V, H, K, D = 64, 64, 4, 2, 64  # width, vocabulary, query heads, KV heads, head size
G, X, F = 96, 8, 64  # dense width, experts, expert width
N_TOKENS = 192
# How stock is fed: its chunks of fewer than 64 tokens sum attention in F16, as we do for the first 128 positions.
CHUNKS = [32, 32, 32, 32, 64]


@dataclass(frozen=True)
class ArchModel:
    """metadata: keys without the architecture's prefix, beside or instead of BASE. layers: rows of each layer in turn."""

    arch: str
    metadata: dict
    layers: tuple
    ends: tuple = ()  # rows beside the embedding and the last norm
    tied: bool = False  # no head of its own
    output_norm: str = "output_norm"
    in_any_order: bool = True  # no sum of F32 weights is taken in another order than stock's, or it does not matter
    n_tokens: int = N_TOKENS  # of the prompt that is recorded
    n_kept: int = 0  # of the last of these the logits are kept; 0: of all

    @property
    def n_expert(self):
        """0: a dense model."""
        return self.metadata.get("expert_count", X) or 0

    @property
    def n_ctx(self):
        """Positions of the context that the prompt is recorded and tested in."""
        return 256 * (self.n_tokens // 256 + 1)


BASE = {
    "context_length": 512, "embedding_length": E, "feed_forward_length": G, "attention.head_count": H,
    "attention.head_count_kv": K, "attention.key_length": D, "attention.value_length": D,
    "attention.layer_norm_rms_epsilon": 1e-5, "rope.dimension_count": D, "rope.freq_base": 10000.0, "vocab_size": V,
    "expert_count": X, "expert_used_count": 3, "expert_feed_forward_length": F,
}  # fmt: skip


def attention(*, bias="", norms=None, fused=False, n_head=H, n_head_kv=K, d=D):
    """Rows (name, row-major shape, kind). bias: parts that have one, of "qkvo". norms: None, "head" or "row"."""
    sizes = {"q": n_head * d, "k": n_head_kv * d, "v": n_head_kv * d}
    rows = [("attn_norm.weight", (E,), "norm")]
    if fused:
        rows.append(("attn_qkv.weight", (sum(sizes.values()), E), "matrix"))
    else:
        rows += [(f"attn_{part}.weight", (n, E), "matrix") for part, n in sizes.items()]
    rows += [(f"attn_{part}.bias", (n,), "bias") for part, n in sizes.items() if part in bias]
    rows.append(("attn_output.weight", (E, n_head * d), "matrix"))
    if "o" in bias:
        rows.append(("attn_output.bias", (E,), "bias"))
    if norms:
        rows += [(f"attn_{part}_norm.weight", (d if norms == "head" else sizes[part],), "norm") for part in "qk"]
    return tuple(rows)


def gated(n_ff, suffix="", *, gate=True):
    shapes = {"gate": (n_ff, E), "up": (n_ff, E), "down": (E, n_ff)}
    shapes = shapes if gate else {part: shape for part, shape in shapes.items() if part != "gate"}
    return tuple((f"ffn_{part}{suffix}.weight", shape, "matrix") for part, shape in shapes.items())


def experts(*, shared=0, select_bias=False, n_expert=X, gate=True):
    """Router, banks, and a shared expert of `shared` hidden values. select_bias: True, or another name of the tensor."""
    rows = [("ffn_gate_inp.weight", (n_expert, E), "router")]
    rows += [(name.replace(".", "_exps.", 1), (n_expert, *shape), kind) for name, shape, kind in gated(F, gate=gate)]
    if select_bias:
        rows.append(("exp_probs_b.bias" if select_bias is True else select_bias, (n_expert,), "choice"))
    return (*rows, *(gated(shared, "_shexp", gate=gate) if shared else ()))


def norm(name="ffn_norm"):
    return ((f"{name}.weight", (E,), "norm"),)


def mamba2(*, n_head=4, head_dim=32, n_group=1, dim=128, n_taps=4):
    """Rows of a Mamba-2 layer with n_head * head_dim inner values."""
    n_inner = n_head * head_dim
    n_channels = n_inner + 2 * n_group * dim
    return (
        *norm("attn_norm"), ("ssm_in.weight", (n_inner + n_channels + n_head, E), "matrix"),
        ("ssm_conv1d.weight", (n_channels, n_taps), "conv"), ("ssm_conv1d.bias", (n_channels,), "bias"),
        ("ssm_dt.bias", (n_head,), "bias"), ("ssm_a", (n_head, 1), "decay"), ("ssm_d", (n_head, 1), "norm"),
        ("ssm_norm.weight", (n_group, n_inner // n_group), "norm"), ("ssm_out.weight", (E, n_inner), "matrix"),
    )  # fmt: skip


def mamba2_keys(*, n_head=4, head_dim=32, n_group=1, dim=128, n_taps=4):
    return {"ssm.conv_kernel": n_taps, "ssm.inner_size": n_head * head_dim, "ssm.state_size": dim,
            "ssm.time_step_rank": n_head, "ssm.group_count": n_group}  # fmt: skip


def next_token_layer(*rows):
    """A layer of next-token prediction, which is skipped: `rows` and what joins it to the model."""
    return (*rows, ("nextn.eh_proj.weight", (E, 2 * E), "matrix"), *norm("nextn.enorm"), *norm("nextn.hnorm"))


def latent_attention(*, rank_q=0, absorbed=True, rank=64, nope=32, rot=16, dim_v=32, b="single"):
    """Rows of latent attention. rank_q: of the queries' latent, 0 without. absorbed: k_b and v_b, of kind `b`, in the place
    of kv_b."""
    rows = [("attn_norm.weight", (E,), "norm"), ("attn_kv_a_norm.weight", (rank,), "norm")]
    rows.append(("attn_kv_a_mqa.weight", (rank + rot, E), "matrix"))
    if rank_q:
        rows += [("attn_q_a.weight", (rank_q, E), "matrix"), ("attn_q_a_norm.weight", (rank_q,), "norm")]
        rows.append(("attn_q_b.weight", (H * (nope + rot), rank_q), "matrix"))
    else:
        rows.append(("attn_q.weight", (H * (nope + rot), E), "matrix"))
    if absorbed:
        rows += [("attn_k_b.weight", (H, rank, nope), b), ("attn_v_b.weight", (H, dim_v, rank), b)]
    else:
        rows.append(("attn_kv_b.weight", (H * (nope + dim_v), rank), "matrix"))
    return (*rows, ("attn_output.weight", (E, H * dim_v), "matrix"))


def yarn(log_multiplier=None, factor=4.0):
    return {
        "rope.scaling.type": "yarn", "rope.scaling.factor": factor, "rope.scaling.original_context_length": 128,
        "rope.scaling.yarn_log_multiplier": log_multiplier,
    }  # fmt: skip


def kda(*, dim=64, n_taps=4):
    """Rows of Kimi delta attention."""
    n = H * dim
    rows = [*norm("attn_norm"), *((f"attn_{part}.weight", (n, E), "matrix") for part in "qkv")]
    rows += [(f"ssm_conv1d_{part}.weight", (1, n, 1, n_taps) if part == "q" else (n, 1, n_taps), "conv") for part in "qkv"]
    rows += [(f"ssm_{name}.weight", shape, "matrix") for name, shape in
             (("f_a", (dim, E)), ("f_b", (n, dim)), ("g_a", (dim, E)), ("g_b", (n, dim)), ("beta", (H, E)))]  # fmt: skip
    return (*rows, ("ssm_a", (1, 1, H, 1), "decay"), ("ssm_dt.bias", (n,), "bias"), ("ssm_norm.weight", (dim,), "norm"),
            ("attn_output.weight", (E, n), "matrix"))  # fmt: skip
