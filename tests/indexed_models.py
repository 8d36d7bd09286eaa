"""Recipes for tests/arch_models.py: models whose attention chooses among positions."""

from tests.arch_parts import ArchModel, E, F, G, H, experts, gated, latent_attention, next_token_layer, norm, yarn

RANK, NOPE, ROT, DIM_V, RANK_Q = 64, 32, 16, 32, 32
HEADS, DIM = 16, 64  # of the indexer


def indexer(rank_q=RANK_Q):
    return (("indexer.attn_k.weight", (DIM, E), "matrix"), ("indexer.attn_q_b.weight", (HEADS * DIM, rank_q), "matrix"),
            ("indexer.proj.weight", (HEADS, E), "matrix"), ("indexer.k_norm.weight", (DIM,), "norm"),
            ("indexer.k_norm.bias", (DIM,), "bias"))  # fmt: skip


def latent_keys(top_k):
    return {
        "attention.head_count_kv": 1, "attention.key_length": RANK + ROT, "attention.value_length": RANK,
        "attention.key_length_mla": NOPE + ROT, "attention.value_length_mla": DIM_V, "attention.kv_lora_rank": RANK,
        "attention.q_lora_rank": RANK_Q, "rope.dimension_count": ROT, "attention.indexer.head_count": HEADS,
        "attention.indexer.key_length": DIM, "attention.indexer.top_k": top_k,
    }  # fmt: skip


def _chosen(arch, types, *, top_k, n_tokens, **metadata):
    """types: which layers have an indexer of their own."""
    def layer(owns, network):
        head = latent_attention(rank_q=RANK_Q, rank=RANK, nope=NOPE, rot=ROT, dim_v=DIM_V)
        return (*head, *(indexer() if owns else ()), *norm(), *network)

    moe = experts(shared=F, select_bias=True)
    layers = [layer(owns, moe if il else gated(G)) for il, owns in enumerate(types)]
    return ArchModel(arch, latent_keys(top_k) | {
        "expert_shared_count": 1, "expert_weights_norm": True, "expert_weights_scale": 2.5, "leading_dense_block_count": 1,
        "nextn_predict_layers": 1, **metadata,
    }, (*layers, next_token_layer(*layer(True, moe))), n_tokens=n_tokens)  # fmt: skip


def _hy4(types=(), **metadata):
    """Four streams; types: as above, none: tokens see all positions."""
    n_layer, streams = 3, 4

    def hyper(name, n, parts):
        return ((f"{name}_fn.weight", (n, streams * E), "mix"), (f"{name}_base.weight", (n,), "bias"),
                (f"{name}_scale.weight", (parts,), "norm"))  # fmt: skip

    layers = []
    for il in range(n_layer):
        rows = [*latent_attention(rank_q=RANK_Q, rank=RANK, nope=NOPE, rot=ROT, dim_v=DIM_V), ("attn_sinks.weight", (H,), "sink"),
                ("attn_gate.weight", (H * DIM_V, E), "matrix"), *hyper("hc_attn", 2 * streams, 2), *hyper("hc_ffn", 2 * streams, 2)]
        rows += indexer() if types and types[il] else ()
        layers.append((*rows, *norm(), *(experts(shared=F, select_bias=True) if il else gated(G))))
    keys = latent_keys(40)
    if not types:
        keys = {key: value for key, value in keys.items() if "indexer" not in key}
    return ArchModel("hy_v4", keys | {
        "expert_shared_count": 1, "expert_weights_norm": True, "expert_weights_scale": 2.5, "leading_dense_block_count": 1,
        "expert_gating_func": 2, "hyper_connection.count": streams, "hyper_connection.epsilon": 1e-6,
        "hyper_connection.magnitude": 2.0, "attention.indexer.types": list(types) or None, **metadata,
    }, tuple(layers), hyper("output_hc", streams, 1), in_any_order=False)  # fmt: skip


INDEXED_MODELS = {
    "hy_v4": _hy4([True, False, True], swiglu_clamp_exp=[0.0, 0.5, 1.0]),
    "hy_v4-all": _hy4(),
    "deepseek32": _chosen("deepseek32", [True] * 3, top_k=150, n_tokens=384, expert_gating_func=2, **yarn(0.1)),
    "glm-dsa": _chosen("glm-dsa", [True, False, True], top_k=40, n_tokens=192,
                       **{"attention.indexer.types": [True, False, True]}),
}  # fmt: skip
