"""Recipes for tests/arch_models.py: models some of whose layers have a sliding window or see chunks."""

from tests.arch_parts import (
    ArchModel, D, E, F, G, H, K, N_TOKENS, X, attention, experts, gated, next_token_layer, norm, yarn,
)  # fmt: skip


def gpt_oss(**metadata):
    biases = [(f"ffn_{part}_exps.bias", (X, n), "strong") for part, n in (("gate", F), ("up", F))]
    biases += [("ffn_down_exps.bias", (X, E), "bias"), ("ffn_gate_inp.bias", (X,), "bias")]
    layer = (*attention(bias="qkvo"), ("attn_sinks.weight", (H,), "strong"), *norm("post_attention_norm"), *experts(), *biases)
    return ArchModel("gpt-oss", {
        "attention.sliding_window": 40, "rope.scaling.type": "yarn", "rope.scaling.factor": 32.0,
        "rope.scaling.original_context_length": 64, **metadata,
    }, (layer,) * 3)  # fmt: skip


def gemma4(dense=False, **metadata):
    """Windows in every second layer; the last one has no matrix of values. Norms after a block are small: stock rounds gates
    and their GELU to F16, where a last bit of a sum shows as 5e-4 of a hidden value, and these norms say how much of the stream
    that is. So do the norms of queries, as attention has no other scale."""
    rows, flags = [], [True, False, True, False]
    for il, windowed in enumerate(flags):
        d, k = (D // 2, K) if windowed else (D, 1)
        heads = [(*row[:2], "query norm") if row[0] == "attn_q_norm.weight" else row for row in attention(norms="head", n_head_kv=k, d=d)]
        layer = [row for row in heads if il < 3 or row[0] != "attn_v.weight"] + [*norm(), *gated(G)]
        layer += [(f"{name}.weight", (E,), "small norm") for name in ("post_attention_norm", "post_ffw_norm")]
        if il:
            layer.append(("layer_output_scale.weight", (1,), "norm"))
        if not dense:
            layer += [("ffn_gate_inp.weight", (X, E), "matrix"), ("ffn_gate_inp.scale", (E,), "strong"),
                      ("ffn_gate_up_exps.weight", (X, 2 * F, E), "matrix"), ("ffn_down_exps.weight", (X, E, F), "matrix"),
                      ("ffn_down_exps.scale", (X,), "norm")]  # fmt: skip
            layer += [row for name in ("pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2") for row in norm(name)]
        rows.append(tuple(layer))
    return ArchModel("gemma4", {
        "attention.head_count_kv": [K, 1, K, 1], "attention.key_length_swa": D // 2, "attention.value_length_swa": D // 2,
        "attention.sliding_window": 40, "attention.sliding_window_pattern": flags, "attention.shared_kv_layers": 0,
        "embedding_length_per_layer_input": 0, "rope.dimension_count_swa": D // 2, "rope.freq_base": 1000000.0,
        "rope.freq_base_swa": 10000.0, "final_logit_softcapping": 5.0, **metadata,
        **({"expert_count": None, "expert_used_count": None, "expert_feed_forward_length": None} if dense else {}),
    }, tuple(rows), (("rope_freqs.weight", (D // 2,), "proportional"),), tied=True, in_any_order=dense)  # fmt: skip


def mimo2():
    """Sinks in layers with a window only; one of them has its projections in one."""
    dk, dv, flags = 48, 32, [False, True, True, False]

    def heads(k, sinks, fused=False):
        sizes = {"q": H * dk, "k": k * dk, "v": k * dv}
        parts = {"qkv": sum(sizes.values())} if fused else sizes
        rows = [*norm("attn_norm"), *((f"attn_{part}.weight", (n, E), "matrix") for part, n in parts.items())]
        return (*rows, ("attn_output.weight", (E, H * dv), "matrix"), *norm(), *((("attn_sinks.weight", (H,), "strong"),) if sinks else ()))

    layers = [(*heads(1, False), *gated(G)), *((*heads(1 if il == 3 else K, il < 3, il == 2), *experts(select_bias=True)) for il in (1, 2, 3))]
    return ArchModel("mimo2", {
        "attention.head_count_kv": [1, K, K, 1, K], "attention.key_length": dk, "attention.value_length": dv,
        "attention.value_scale": 0.707, "attention.sliding_window": 40, "attention.sliding_window_pattern": [*map(int, flags), 1],
        "rope.dimension_count": 16, "rope.freq_base": 5000000.0, "rope.freq_base_swa": 10000.0, "nextn_predict_layers": 1,
    }, (*layers, next_token_layer(*heads(K, True), *gated(G))))  # fmt: skip


def step35(**metadata):
    """Bounds in the layers 1, 2 and of the shared expert in 3 and the dense network."""
    flags = [False, True, True, False]
    layers = []
    for il, windowed in enumerate(flags):
        h, k = (6, 2) if windowed else (H, 1)
        layer = (*attention(norms="head", n_head=h, n_head_kv=k), ("attn_gate.weight", (h, E), "matrix"), *norm())
        layers.append((*layer, *(experts(shared=F, select_bias=True) if il else gated(G))))
    return ArchModel("step35", {
        "attention.head_count": [H, 6, 6, H, 6], "attention.head_count_kv": [1, 2, 2, 1, 2], "attention.sliding_window": 40,
        "attention.sliding_window_pattern": [*flags, True], "rope.freq_base": 5000000.0, "rope.freq_base_swa": 10000.0,
        "expert_shared_feed_forward_length": F, "expert_weights_scale": 3.0, "expert_weights_norm": True,
        "leading_dense_block_count": 1, "swiglu_clamp_exp": [0.0, 0.5, 1.0, 0.0, 0.0],
        "swiglu_clamp_shexp": [0.7, 0.0, 0.0, 0.4, 0.0], "nextn_predict_layers": 1, **metadata,
    }, (*layers, next_token_layer(*layers[2])), (("rope_freqs.weight", (D // 2,), "factor"),), in_any_order=False)  # fmt: skip


def laguna(flags, gates, **metadata):
    """Layers without a window have fewer heads, and yarn on a half of them. gates: a head or a value of attention."""
    layers = []
    for il, windowed in enumerate(flags):
        h = 6 if windowed else H
        layer = (*attention(norms="head", n_head=h), ("attn_gate.weight", (h * (1 if gates == "heads" else D), E), "matrix"), *norm())
        layers.append((*layer, *(experts(shared=G, select_bias=True) if il else gated(G))))
    return ArchModel("laguna", {
        "attention.head_count": [6 if flag else H for flag in flags], "rope.dimension_count": D // 2,
        "rope.freq_base": 500000.0, "leading_dense_block_count": 1, "expert_shared_feed_forward_length": G,
        "expert_weights_norm": True, "expert_weights_scale": 2.5, "expert_gating_func": 2, **yarn(factor=32.0), **metadata,
    }, tuple(layers), in_any_order=False)  # fmt: skip


def afmoe(**metadata):
    """Norms after a block are small: roundings of what attention sums in F16 would be the more of the stream."""
    rows = (*attention(norms="head"), ("attn_gate.weight", (H * D, E), "matrix"), *norm(),
            *((f"{name}.weight", (E,), "small norm") for name in ("post_attention_norm", "post_ffw_norm")))  # fmt: skip
    moe = (*rows, *experts(shared=F, select_bias=True))
    return ArchModel("afmoe", {
        "attention.sliding_window": 40, "leading_dense_block_count": 1, "expert_shared_count": 1, "expert_weights_norm": True,
        "expert_weights_scale": 2.826, "expert_gating_func": 2, **metadata,
    }, ((*rows, *gated(G)), *(moe,) * 4), in_any_order=False)  # fmt: skip


def maple():
    layer = (*attention(norms="head"), *norm(), *experts())
    return ArchModel("maple", {
        "attention.sliding_window": 40, "attention.sliding_window_pattern": [True, False, True], "swiglu_clamp_exp": [0.5, 7.0, 0.4],
        "rope.freq_base_swa": 500.0,
    }, (layer,) * 3, in_any_order=False)  # fmt: skip


def exaone():
    head = (*attention(norms="head"), *norm())
    dense, moe = (*head, *gated(G)), (*head, *experts(shared=F, select_bias=True))
    return ArchModel("exaone-moe", {
        "attention.sliding_window": 40, "attention.sliding_window_pattern": [True, True, True, False, False],
        "leading_dense_block_count": 2, "expert_shared_count": 1, "expert_shared_feed_forward_length": F,
        "expert_weights_norm": True, "expert_weights_scale": 2.5, "expert_gating_func": 2, "rope.scaling.type": "none",
        "nextn_predict_layers": 1,
    }, (dense, dense, moe, moe, next_token_layer(*dense)))  # fmt: skip


def small_thinkers():
    """Roundings of keys and values to F16 add up over layers of nothing but attention. The deep one uses all experts: the
    choice between two near each other would be one of rounding."""
    layer, keys = (*attention(), *norm(), *experts()), {"feed_forward_length": F, "expert_gating_func": 2}
    window = {"attention.sliding_window": 4096}
    return {
        "smallthinker": ArchModel("smallthinker", keys | window | {
            "attention.sliding_window_pattern": 2, "rope.freq_base_swa": 30000.0,
        }, (layer,) * 3, in_any_order=False),
        "smallthinker-rope": ArchModel("smallthinker", keys | {"expert_gating_func": 1}, (layer,) * 2, tied=True),
        "smallthinker-deep": ArchModel("smallthinker", keys | window | {"expert_used_count": X}, (layer,) * 5, in_any_order=False),
    }  # fmt: skip


def llama4(n_expert=X, long=False, **metadata):
    """Experts in every second layer; the fourth layer does not rotate."""
    heads = (*attention(), *norm())
    layers = ((*heads, *gated(G)), (*heads, *experts(shared=F, n_expert=n_expert))) * 2
    return ArchModel("llama4", {
        "interleave_moe_layer_step": 2, "rope.freq_base": 500000.0, "expert_count": n_expert,
        **metadata, **({"context_length": 16384} if long else {}),
    }, layers, (("rope_freqs.weight", (D // 2,), "factor"),), in_any_order=False, n_tokens=8320 if long else N_TOKENS,
       n_kept=128 if long else 0)  # fmt: skip


def cohere(norms="attention.layer_norm_epsilon", **metadata):
    dense, moe = (*attention(), *gated(G)), (*attention(), *experts(shared=2 * F))
    return ArchModel("cohere2moe", {
        "attention.layer_norm_rms_epsilon": None, norms: 1e-5, "attention.sliding_window": 40, "logit_scale": 0.25,
        "leading_dense_block_count": 1, "expert_shared_count": 2, "expert_weights_norm": True, "expert_weights_scale": 1.5,
        "expert_gating_func": 2, "nextn_predict_layers": 1, **metadata,
    }, (dense, moe, moe, moe, next_token_layer(*moe, *norm("nextn.shared_head_norm"))), tied=True, in_any_order=False)  # fmt: skip
