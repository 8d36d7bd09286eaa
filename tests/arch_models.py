"""Tiny random models of the architectures that are compared with recorded logits of stock llama.cpp.

Each has in kind what its real models have: dense layers first, shared experts, biases, odd norms, rope over a part of a
head. `write_arch(path, name)` writes one; tools/record_archs.py records stock's logits of all of them.
"""

import zlib

import numpy as np

from tests import hybrid
from tests.arch_parts import (
    BASE, N_TOKENS, ArchModel, D, E, F, G, H, K, QType, V, X, attention, experts, gated, kda, latent_attention, mamba2,
    mamba2_keys, next_token_layer, norm, yarn,
)  # fmt: skip
from tests.indexed_models import INDEXED_MODELS
from tests.tiny import Tiny, write_gguf
from tests.tiny_weights import random_weights
from tests.window_models import (
    afmoe, cohere, exaone, gemma4, gpt_oss, laguna, llama4, maple, mimo2, small_thinkers, step35,
)  # fmt: skip


def _deepseek(*, rank_q=0, absorbed=True, rank=64, nope=32, rot=16, dim_v=32, bias=False, shared=1, n_expert=X, n_nextn=0,
              b="single", arch="deepseek2", **metadata):  # fmt: skip
    head = (*latent_attention(rank_q=rank_q, absorbed=absorbed, rank=rank, nope=nope, rot=rot, dim_v=dim_v, b=b), *norm())
    moe = (*head, *experts(shared=shared * F, select_bias=bias, n_expert=n_expert))
    keys = {
        "attention.head_count_kv": 1 if absorbed else H, "attention.key_length": rank + rot if absorbed else nope + rot,
        "attention.value_length": rank if absorbed else dim_v, "attention.key_length_mla": nope + rot if absorbed else None,
        "attention.value_length_mla": dim_v if absorbed else None, "attention.kv_lora_rank": rank,
        "attention.q_lora_rank": rank_q, "rope.dimension_count": rot, "expert_count": n_expert, "expert_shared_count": shared,
        "leading_dense_block_count": 1, "nextn_predict_layers": n_nextn,
    }  # fmt: skip
    return ArchModel(arch, keys | metadata, ((*head, *gated(G)), moe, moe, *(next_token_layer(*moe),) * n_nextn),
                     in_any_order=b == "single")  # fmt: skip


_TEMPERED = {"attention.temperature_scale": 0.5, "attention.temperature_length": 20}
_DEEPSEEK_GROUPS = {"n_expert": 16, "expert_group_count": 4, "expert_group_used_count": 2}


def _glm(norms, **metadata):
    head = (*attention(bias="qkv", norms=norms), *norm("post_attention_norm"))
    moe = (*head, *experts(shared=F, select_bias=True))
    return ArchModel("glm4moe", {
        "rope.dimension_count": D // 2, "leading_dense_block_count": 1, "expert_shared_count": 1,
        "expert_weights_norm": True, "expert_weights_scale": 2.5, "expert_gating_func": 2, "nextn_predict_layers": 1,
        **metadata,
    }, ((*head, *gated(G)), moe, moe, next_token_layer(*moe)))  # fmt: skip


def _dots():
    head = (*attention(norms="head", n_head_kv=H), *norm())
    moe = (*head, *experts(shared=2 * F, select_bias=True))
    return ArchModel("dots1", {
        "attention.head_count_kv": H, "leading_dense_block_count": 1, "expert_shared_count": 2,
        "expert_weights_norm": True, "expert_weights_scale": 2.5, "expert_gating_func": 2,
    }, ((*head, *gated(G)), moe, moe))  # fmt: skip


def _ernie():
    head = (*attention(), *norm())
    moe = (*head, *experts(shared=2 * F, select_bias=True))
    return ArchModel("ernie4_5-moe", {
        "leading_dense_block_count": 1, "interleave_moe_layer_step": 1, "expert_shared_count": 2,
        "expert_shared_feed_forward_length": 2 * F,
    }, ((*head, *gated(G)), moe, moe), tied=True)  # fmt: skip


def _bailing():
    """Here the heads together must be as wide as the model."""
    head = (*attention(norms="head", fused=True, n_head=2, n_head_kv=1, d=32), *norm())
    moe = (*head, *experts(shared=F, select_bias=True, n_expert=16))
    return ArchModel("bailingmoe2", {
        "attention.head_count": 2, "attention.head_count_kv": 1, "attention.key_length": 32, "attention.value_length": 32,
        "rope.dimension_count": 16, "leading_dense_block_count": 1, "expert_shared_count": 1,
        "expert_shared_feed_forward_length": F, "expert_weights_norm": True, "expert_weights_scale": 2.5,
        "expert_gating_func": 2, "expert_count": 16, "expert_group_count": 4, "expert_group_used_count": 2,
        "nextn_predict_layers": 1,
    }, ((*head, *gated(G)), moe, moe, next_token_layer(*moe, *norm("layer_output_norm"))))  # fmt: skip


_GRANITE_SCALES = {"embedding_scale": 12.0, "residual_scale": 0.22, "logit_scale": 6.0, "attention.scale": 1 / 64}


def _granite(shared, arch="granitemoe"):
    moe = (*attention(), *norm(), *experts(shared=shared))
    return ArchModel(arch, {
        "feed_forward_length": F, "expert_feed_forward_length": None, "expert_shared_feed_forward_length": shared or None,
        **_GRANITE_SCALES,
    }, (moe, moe), tied=True)  # fmt: skip


def _dense(arch, **metadata):
    layer = (*attention(bias="qkvo"), *norm(), *gated(G))
    none = dict.fromkeys(("expert_count", "expert_used_count", "expert_feed_forward_length"))
    return ArchModel(arch, none | metadata, (layer, layer), tied=True)


def _granite_hybrid(n_expert=X, **sizes):
    """Inner values must be twice as many as the model is wide. Without experts here also with rope, a head and no scales."""
    ffn = (*norm(), *(experts(shared=G) if n_expert else gated(G)))
    state, heads = (*mamba2(**sizes), *ffn), (*attention(), *ffn)
    keys = {"attention.head_count_kv": [0, K, 0, 0], "expert_shared_feed_forward_length": G if n_expert else None}
    if n_expert:
        keys |= {"feed_forward_length": F, "expert_feed_forward_length": None, "rope.scaling.finetuned": False,
                 **_GRANITE_SCALES}  # fmt: skip
    else:
        keys |= dict.fromkeys(("expert_count", "expert_used_count", "expert_feed_forward_length"))
    return ArchModel("granitehybrid", keys | mamba2_keys(**sizes), (state, heads, state, state), tied=bool(n_expert))


def _nemotron(n_expert=X):
    """Each layer is one of three kinds. Without experts here also with biases, and the older name of the norms' epsilon."""
    sizes = {"n_head": 8, "n_group": 2, "dim": 64 if n_expert else 48}
    if n_expert:
        network, n_ff = experts(shared=G, select_bias=True, gate=False), F
    else:
        network = (*gated(G, gate=False), ("ffn_up.bias", (G,), "bias"), ("ffn_down.bias", (E,), "bias"))
        n_ff = G
    network, state, heads = (*norm("attn_norm"), *network), mamba2(**sizes), attention(bias="" if n_expert else "qkvo")
    nextn = (*attention(), *network[1:], *norm("post_attention_norm"), *norm("nextn.shared_head_norm"))
    keys = {"expert_shared_feed_forward_length": G, "expert_shared_count": 1, "expert_weights_norm": True,
            "expert_weights_scale": 2.5, "expert_group_count": 1, "nextn_predict_layers": 1}  # fmt: skip
    if not n_expert:
        keys = dict.fromkeys(("expert_count", "expert_used_count", "expert_feed_forward_length"))
        keys |= {"attention.layer_norm_rms_epsilon": None}
    layers = [state, network, heads, network, state, network, *((next_token_layer(*nextn),) if n_expert else ())]
    keys |= {"attention.layer_norm_epsilon": 1e-5, "attention.head_count_kv": [0, 0, K, 0, 0, 0, K][: len(layers)],
             "feed_forward_length": [0, n_ff, 0, n_ff, 0, n_ff, n_ff][: len(layers)]}  # fmt: skip
    return ArchModel("nemotron_h_moe" if n_expert else "nemotron_h", keys | mamba2_keys(**sizes), tuple(layers))


def _kimi(dim=64, n_taps=4):
    rank, nope, rot, dim_v = 64, 32, 16, 32
    network = (*norm(), *experts(shared=F, select_bias=True))
    state, heads = kda(dim=dim, n_taps=n_taps), latent_attention(rank=rank, nope=nope, rot=rot, dim_v=dim_v)
    return ArchModel("kimi-linear", {
        "attention.head_count_kv": [0, 0, 1, 0], "attention.key_length": rank + rot, "attention.value_length": 72,
        "attention.key_length_mla": nope + rot, "attention.value_length_mla": dim_v, "attention.kv_lora_rank": rank,
        "rope.dimension_count": rot, "ssm.conv_kernel": n_taps, "kda.head_dim": dim, "expert_shared_count": 1,
        "leading_dense_block_count": 1, "expert_weights_scale": 2.446, "expert_gating_func": 2,
    }, ((*state, *norm(), *gated(G)), (*state, *network), (*heads, *network), (*state, *network)))  # fmt: skip


def _bailing3(rank_q, clamps=(0.0, 0.0), **metadata):
    """rank_q: of the queries' latents, 0 without. clamps: bounds of experts, and of the shared one and the dense network."""
    rank, nope, rot, dim_v, dim, n_taps = 64, 32, 16, 32, 64, 4
    n = H * dim
    rows = [*kda(dim=dim, n_taps=n_taps)]
    rows = [row for row in rows if row[0] not in ("ssm_f_b.weight", "ssm_g_b.weight", "ssm_a")] + [("ssm_a", (H, 1), "norm")]
    rows = [(name, (n, E) if name in ("ssm_f_a.weight", "ssm_g_a.weight") else shape, kind) for name, shape, kind in rows]
    heads = (*latent_attention(rank_q=rank_q, rank=rank, nope=nope, rot=rot, dim_v=dim_v), ("attn_gate.weight", (H, E), "matrix"))
    network = (*norm(), *experts(shared=F, select_bias=True, n_expert=16))
    return ArchModel("bailingmoe3", {
        "attention.head_count_kv": [0, 1, 0, 1], "attention.key_length": rank + rot, "attention.value_length": 72,
        "attention.key_length_mla": nope + rot, "attention.value_length_mla": dim_v, "attention.kv_lora_rank": rank,
        "attention.q_lora_rank": rank_q or None, "rope.dimension_count": rot, "ssm.conv_kernel": n_taps, "kda.head_dim": dim,
        "kda.gate_lower_bound": -5.0, "kda.safe_gate": True, "expert_count": 16, "expert_group_count": 4,
        "expert_group_used_count": 2, "expert_shared_count": 1, "expert_shared_feed_forward_length": F,
        "leading_dense_block_count": 1, "expert_weights_scale": 2.5, "expert_weights_norm": True, "expert_gating_func": 2,
        "swiglu_clamp_exp": [clamps[0]] * 4, "swiglu_clamp_shexp": [clamps[1]] * 4, "nextn_predict_layers": 1, **metadata,
    }, ((*rows, *norm(), *gated(G)), (*heads, *network), (*rows, *network),
        next_token_layer(*heads, *network, *norm("layer_output_norm"))))  # fmt: skip


def _mistral3(n_expert=X):
    layer = (*attention(bias="" if n_expert else "qo"), *norm(), *(experts() if n_expert else gated(G)))
    keys = {"attention.temperature_scale": 0.4, **yarn(0.7), "rope.scaling.original_context_length": 32, "feed_forward_length": F}
    if not n_expert:
        keys |= dict.fromkeys(("expert_count", "expert_used_count")) | {"feed_forward_length": G}
    return ArchModel("mistral3", keys | {"expert_feed_forward_length": None}, (layer,) * (2 if n_expert else 3), tied=not n_expert,
                     in_any_order=False)  # fmt: skip


def _phi():
    """Here the heads together must be as wide as the model. The factors are for a context as long as the original, or longer."""
    heads = attention(bias="qkvo", n_head=2, n_head_kv=1, d=32)
    moe = (*heads, ("attn_norm.bias", (E,), "bias"), *norm(), ("ffn_norm.bias", (E,), "bias"), *experts())
    ends = (("output_norm.bias", (E,), "bias"), ("output.bias", (V,), "bias"))
    ends += tuple((f"rope_factors_{length}.weight", (16,), "factor") for length in ("short", "long"))
    return {
        name: ArchModel("phimoe", {
            "attention.head_count": 2, "attention.head_count_kv": 1, "attention.key_length": None,
            "attention.value_length": None, "rope.dimension_count": 32, "feed_forward_length": F,
            "expert_feed_forward_length": None, "rope.scaling.type": "longrope", "rope.scaling.attn_factor": 1.19,
            "rope.scaling.original_context_length": n_ctx_orig,
        }, (moe, moe), ends)
        for name, n_ctx_orig in (("phimoe", 256), ("phimoe-long", 128))
    }  # fmt: skip


def _deepseek4():
    """A layer without compressed keys, two that compress four positions to one, of which an indexer chooses, and one that
    compresses 128. The first two layers' experts follow from the token alone."""
    d, n_rot, rank, o_rank, groups, di, hi, streams = 96, 32, 64, 32, 2, 64, 16, 4  # 96: heads of 128 sum in F16 as CPUs with F16 units do

    def hyper(name, n):
        return ((f"{name}_fn.weight", (n, streams * E), "mix"), (f"{name}_base.weight", (n,), "bias"))

    def compressor(name, ratio, dim):
        n = dim * (2 if ratio == 4 else 1)
        return ((f"{name}_kv.weight", (n, E), "matrix"), (f"{name}_gate.weight", (n, E), "matrix"),
                (f"{name}_ape.weight", (ratio, n), "conv"), (f"{name}_norm.weight", (dim,), "norm"))  # fmt: skip

    def layer(ratio, by_token):
        rows = [*norm("attn_norm"), ("attn_sinks.weight", (H,), "sink"), ("attn_q_a.weight", (rank, E), "matrix"),
                ("attn_q_a_norm.weight", (rank,), "norm"), ("attn_q_b.weight", (H * d, rank), "matrix"),
                ("attn_kv.weight", (d, E), "matrix"), ("attn_kv_a_norm.weight", (d,), "norm"),
                ("attn_output_a.weight", (o_rank * groups, H * d // groups), "matrix"),
                ("attn_output_b.weight", (E, o_rank * groups), "matrix")]  # fmt: skip
        for name in ("hc_attn", "hc_ffn"):
            rows += [*hyper(name, (2 + streams) * streams), (f"{name}_scale.weight", (3,), "norm")]
        if ratio:
            rows += compressor("attn_compressor", ratio, d)
        if ratio == 4:
            rows += [("indexer.proj.weight", (hi, E), "matrix"), ("indexer.attn_q_b.weight", (hi * di, rank), "matrix")]
            rows += compressor("indexer_compressor", ratio, di)
        rows += [*norm(), *experts(shared=F, select_bias=not by_token)]
        return (*rows, *((("ffn_gate_tid2eid.weight", (V, 3), "table"),) if by_token else ()))

    ratios = [0, 4, 128, 4, 0]
    layers = [layer(ratio, il < 2) for il, ratio in enumerate(ratios)]
    ends = (*hyper("output_hc", streams), ("output_hc_scale.weight", (1,), "norm"))
    return ArchModel("deepseek4", {
        "attention.head_count_kv": 1, "attention.key_length": d, "attention.value_length": d, "rope.dimension_count": n_rot,
        "attention.q_lora_rank": rank, "attention.sliding_window": 32, "attention.compress_ratios": ratios,
        "attention.compress_rope_freq_base": 40000.0, "attention.indexer.head_count": hi, "attention.indexer.key_length": di,
        "attention.indexer.top_k": 16, "attention.output_group_count": groups, "attention.output_lora_rank": o_rank,
        "hyper_connection.count": streams, "hyper_connection.sinkhorn_iterations": 20, "hyper_connection.epsilon": 1e-6,
        "hash_layer_count": 2, "expert_shared_count": 1, "expert_weights_norm": True, "expert_weights_scale": 1.5,
        "expert_gating_func": 4, "swiglu_clamp_exp": [1.0, 0.5, 0.0, 1.0, 1.0], "swiglu_clamp_shexp": [0.75, 0.0, 1.0, 1.0, 1.0],
        "rope.scaling.type": "yarn", "rope.scaling.factor": 16.0, "rope.scaling.original_context_length": 64,
        "nextn_predict_layers": 1,
    }, (*layers[:-1], next_token_layer(*layers[-1])), ends, in_any_order=False, n_tokens=384)  # fmt: skip


def _hybrid(arch, n_layer, n_nextn=0, **sizes):
    """Gated delta nets, and every fourth layer attention."""
    hp = hybrid.SIZES | dict(n_layer=n_layer, n_embd=E, n_vocab=V, n_ff=F, n_head=H, n_head_kv=K, head_dim=D, n_rot=D // 2) | sizes
    rows = [tuple((name, shape, hybrid.kind(name)) for name, shape in hybrid.layer(arch, hp, il).items()) for il in range(n_layer)]
    skipped = (next_token_layer(*rows[3]),) * n_nextn
    return ArchModel(arch, hybrid.keys(arch, hp) | {"block_count": n_layer + n_nextn, "nextn_predict_layers": n_nextn},
                     (*rows, *skipped))  # fmt: skip


def _lfm(arch, **metadata):
    """Gated short convolutions, and attention in two layers. The heads together are as wide as the model."""
    conv = (*norm("attn_norm"), ("shortconv.conv.weight", (E, 3), "conv"), ("shortconv.in_proj.weight", (3 * E, E), "matrix"),
            ("shortconv.out_proj.weight", (E, E), "matrix"), *norm())  # fmt: skip
    heads = (*attention(norms="head", n_head=2, n_head_kv=1, d=32), *norm())
    moe = experts(select_bias=True) if arch == "lfm2moe" else gated(G)
    return ArchModel(arch, {
        "attention.head_count": 2, "attention.head_count_kv": [0, 1, 0, 0, 1], "attention.key_length": None,
        "attention.value_length": None, "rope.dimension_count": None, "shortconv.l_cache": 3, **metadata,
    }, ((*conv, *gated(G)), (*heads, *moe), (*conv, *moe), (*conv, *moe), (*heads, *moe)), tied=True,
        output_norm="token_embd_norm")  # fmt: skip


def _hy(**metadata):
    """Its layers of next-token prediction have a norm that others do not."""
    head = (*attention(norms="head"), *norm())
    moe = (*head, *experts(shared=F, select_bias="exp_probs_b"))
    return ArchModel("hy_v3", {
        "expert_shared_feed_forward_length": F, "expert_weights_norm": True, "expert_weights_scale": 2.5,
        "nextn_predict_layers": 1, **metadata,
    }, ((*head, *gated(G)), moe, moe, next_token_layer(*moe, *norm("nextn.shared_head_norm"))))  # fmt: skip


_WIDE = {"attention.head_count": 2, "attention.head_count_kv": 1, "attention.key_length": None, "attention.value_length": None,
         "rope.dimension_count": 32, "expert_feed_forward_length": None, "feed_forward_length": F}  # fmt: skip
_WIDE_HEADS = attention(n_head=2, n_head_kv=1, d=32)  # together as wide as the model


def _grok(dense=False, **metadata):
    """Grok-2 has a dense network beside the experts; older files have another name for the last norm of a layer. Norms after
    attention are tiny: stock rounds what keys weigh to F16 here, and gates and their GELU, where a little more shows."""
    last = "post_ffw_norm" if dense else "layer_output_norm"
    layer = (*_WIDE_HEADS, ("attn_output_norm.weight", (E,), "tiny norm"), *norm(), *experts(), (f"{last}.weight", (E,), "small norm"),
             *(gated(G) if dense else ()))  # fmt: skip
    return ArchModel("grok", _WIDE | {
        "feed_forward_length": G if dense else F, "expert_feed_forward_length": F if dense else None,
        "attention.output_scale": 0.1, "attn_logit_softcapping": 3.0, "router_logit_softcapping": 30.0, "embedding_scale": 8.0,
        "logit_scale": 0.5, **metadata,
    }, (layer,) * 2, tied=not dense, in_any_order=False)  # fmt: skip


def _jamba(dim=16, n_taps=4, rank=10):
    """Inner values must be twice as many as the model is wide. Heads together are as wide as the model."""
    n = 2 * E
    state = (*norm("attn_norm"), ("ssm_in.weight", (2 * n, E), "matrix"), ("ssm_conv1d.weight", (n, n_taps), "conv"),
             ("ssm_conv1d.bias", (n,), "bias"), ("ssm_x.weight", (rank + 2 * dim, n), "matrix"), ("ssm_dt_norm.weight", (rank,), "norm"),
             ("ssm_dt.weight", (n, rank), "mix"), ("ssm_dt.bias", (n,), "bias"), ("ssm_b_norm.weight", (dim,), "norm"),
             ("ssm_c_norm.weight", (dim,), "norm"), ("ssm_a", (n, dim), "decay"), ("ssm_d", (n,), "norm"),
             ("ssm_out.weight", (E, n), "matrix"))  # fmt: skip
    dense, moe = (*norm(), *gated(F)), (*norm(), *experts())
    return ArchModel("jamba", {
        "attention.head_count": 2, "attention.head_count_kv": [0, 0, 1, 0, 0], "attention.key_length": None,
        "attention.value_length": None, "rope.dimension_count": None, "rope.freq_base": None, "feed_forward_length": F,
        "expert_feed_forward_length": None, "ssm.conv_kernel": n_taps, "ssm.inner_size": n, "ssm.state_size": dim,
        "ssm.time_step_rank": rank,
    }, ((*state, *dense), (*state, *moe), (*_WIDE_HEADS, *dense), (*state, *moe), (*state, *dense)))  # fmt: skip


_DBRX = (*attention(n_head=2, n_head_kv=1, d=32, fused=True), *norm("attn_output_norm"), *experts())
_ARCTIC = (*_WIDE_HEADS, *norm(), *gated(E), *norm("ffn_norm_exps"), *experts())
_BAILING1 = (*attention(), *norm(), *experts(shared=2 * F))
_DEEPSEEK1 = (*attention(n_head=2, n_head_kv=2, d=32), *norm())
_QWEN = (*attention(norms="head"), *norm(), *experts())
_GROVE = (*_QWEN, *((name.replace(".", "_chexps.", 1), (X // 2, *shape), kind) for name, shape, kind in gated(32)))
_MINIMAX = (*attention(norms="row"), *norm(), *experts(select_bias=True))
_HUNYUAN = (*attention(norms="head"), *norm(), *experts(shared=G))
ARCH_MODELS = {
    **INDEXED_MODELS,
    "glm4moe": _glm(norms=None),
    "glm4moe-large": _glm(norms="head", **{"rope.dimension_sections": [4, 6, 6, 0]}),
    "qwen3vlmoe": ArchModel("qwen3vlmoe", {"rope.dimension_sections": [12, 10, 10, 0], "n_deepstack_layers": 3}, (_QWEN,) * 2),
    "minimax-m2": ArchModel(
        "minimax-m2", {"feed_forward_length": F, "rope.dimension_count": D // 2, "expert_gating_func": 2}, (_MINIMAX,) * 2
    ),
    "ernie4_5-moe": _ernie(),
    "dots1": _dots(),
    "bailingmoe2": _bailing(),
    "hunyuan-moe": ArchModel(
        "hunyuan-moe",
        {"feed_forward_length": F, "expert_shared_feed_forward_length": G, "expert_shared_count": 1}, (_HUNYUAN,) * 2, tied=True,
    ),
    "gpt-oss": gpt_oss(),
    "gpt-oss-two-bases": gpt_oss(**{"rope.freq_base_swa": 500.0}),
    "exaone-moe": exaone(),
    "gemma4": gemma4(),
    "mimo2": mimo2(),
    "step35": step35(),
    "afmoe": afmoe(),
    "mistral3": _mistral3(),
    "laguna": laguna([False, True, True], "heads", **{
        "attention.sliding_window": 40, "rope.freq_base_swa": 10000.0, "rope.dimension_count_swa": D,
    }),
    "laguna-values": laguna([False] * 3, "values"),
    "qwen35moe": _hybrid("qwen35moe", 8, n_nextn=1, dim=128),
    "qwen3next": _hybrid("qwen3next", 4, dim=48, n_head_v=6, n_taps=3),
    "granitemoe": _granite(shared=0),
    "granitemoe-shared": _granite(shared=G),
    "granite-moe": _granite(shared=0, arch="granite"),
    "minicpm-moe": _granite(shared=0, arch="minicpm"),
    "maple": maple(),
    "deepseek4": _deepseek4(),
    "lfm2moe": _lfm("lfm2moe", leading_dense_block_count=1, expert_gating_func=2),
    "bailingmoe": ArchModel("bailingmoe", {
        "leading_dense_block_count": 0, "expert_shared_count": 2, "expert_weights_norm": True, "expert_weights_scale": 1.5,
    }, (_BAILING1,) * 2),
    "deepseek": ArchModel("deepseek", {
        "attention.head_count": 2, "attention.head_count_kv": 2, "attention.key_length": None, "attention.value_length": None,
        "rope.dimension_count": 32, "rope.scaling.type": "none", "leading_dense_block_count": 1, "expert_shared_count": 2,
        "expert_weights_scale": 1.0,
    }, ((*_DEEPSEEK1, *gated(G)), *((*_DEEPSEEK1, *experts(shared=2 * F)),) * 2)),
    "llama4": llama4(expert_used_count=1),
    "llama4-many": llama4(n_expert=128, **{"rope.freq_base_swa": 10000.0, "attention.sliding_window_pattern": [1, 0, 1, 0]}),
    "dbrx": ArchModel("dbrx", _WIDE | {
        "attention.layer_norm_rms_epsilon": None, "attention.layer_norm_epsilon": 1e-5, "attention.clamp_kqv": 1.5,
    }, (_DBRX,) * 2),
    "arctic": ArchModel("arctic", _WIDE, (_ARCTIC,) * 2, tied=True),
    "grok": _grok(),
    "grok-dense": _grok(dense=True, **yarn(), **{"final_logit_softcapping": 5.0, "rope.scaling.yarn_beta_slow": 1.0}),
    "cohere2moe": cohere(),
    "cohere2moe-rms": cohere("attention.layer_norm_rms_epsilon"),
    "jamba": _jamba(),
    "jamba-narrow": _jamba(dim=8, n_taps=3, rank=4),
    **small_thinkers(),
    "grovemoe": ArchModel("grovemoe", {
        "experts_per_group": 2, "expert_group_scale": 0.5, "expert_chunk_feed_forward_length": 32,
    }, (_GROVE,) * 2),
    "mellum": ArchModel("mellum", {
        "attention.sliding_window": 40, "attention.sliding_window_pattern": [True, False, True], **yarn(),
    }, (_QWEN,) * 3, in_any_order=False),
    "hy_v3": _hy(expert_gating_func=2),
    "granitehybrid": _granite_hybrid(),
    "granitehybrid-dense": _granite_hybrid(n_expert=0, n_group=2, n_head=8, head_dim=16, dim=48, n_taps=3),
    "nemotron_h_moe": _nemotron(),
    "nemotron_h": _nemotron(n_expert=0),
    "bailingmoe3": _bailing3(32),
    "bailingmoe3-clamp": _bailing3(0, (0.5, 0.7), **{"rope.dimension_sections": [3, 3, 2, 0]}),
    "kimi-linear": _kimi(dim=128),
    "kimi-linear-small": _kimi(dim=32, n_taps=3),
    **_phi(),
    "deepseek2": _deepseek(
        rank_q=32, bias=True, n_nextn=1, expert_gating_func=2, expert_weights_norm=True, expert_weights_scale=2.5,
        **_DEEPSEEK_GROUPS, **yarn(0.1),
    ),
    "deepseek2-lite": _deepseek(shared=2, rot=32, expert_gating_func=1, **yarn(0.0707)),
    "deepseek2-narrow": _deepseek(
        rank_q=32, nope=32, rot=32, dim_v=64, rank=32, expert_gating_func=2, expert_weights_norm=True,
        **_TEMPERED,
    ),
    "deepseek2-dense": _deepseek(  # all experts are used: the choice between two near each other would be one of rounding
        rank_q=32, bias=True, b="matrix", expert_gating_func=2, expert_weights_norm=True, expert_used_count=X, **yarn(0.1),
    ),
    "mistral4": _deepseek(
        rank_q=32, arch="mistral4", expert_gating_func=1, expert_weights_norm=True, **_TEMPERED, **yarn(0.1),
    ),
    "deepseek2-kv_b": _deepseek(rank_q=64, absorbed=False, expert_weights_scale=16.0, **_DEEPSEEK_GROUPS, **yarn()),
    "deepseek2-kv_b-lite": _deepseek(
        absorbed=False, shared=2, dim_v=64, **_TEMPERED,
        **{"rope.scaling.type": "linear", "rope.scaling.factor": 2.0},
    ),
}  # fmt: skip

# Without experts, for tests of their own.
DENSE_MODELS = {
    "granite": _dense("granite", **_GRANITE_SCALES),
    "granite-nope": _dense("granite", **_GRANITE_SCALES, **{"rope.scaling.finetuned": False}),
    "minicpm": _dense("minicpm"),
    "ernie4_5": _dense("ernie4_5"),
    "mistral3-dense": _mistral3(n_expert=0),
    "lfm2": _lfm("lfm2", **dict.fromkeys(["expert_count", "expert_used_count", "expert_feed_forward_length"])),
    "lfm2-window": _lfm("lfm2", **dict.fromkeys(["expert_count", "expert_used_count", "expert_feed_forward_length"]),
                        **{"attention.sliding_window": 40}),
    "gemma4-dense": gemma4(dense=True),
}  # fmt: skip

# Longer texts than others, for tests of their own.
LONG_MODELS = {"llama4-long": llama4(long=True)}


def write_arch(path, name, *, quant="F32", tensors=None, metadata=None):
    """Write a model of ARCH_MODELS, DENSE_MODELS or LONG_MODELS and return a Tiny. `tensors`, `metadata` replace; None removes."""
    model = (ARCH_MODELS | DENSE_MODELS | LONG_MODELS)[name]
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    rows = [("token_embd.weight", (V, E), "matrix"), *norm(model.output_norm), *model.ends]
    rows += [] if model.tied else [("output.weight", (V, E), "matrix")]
    rows += [(f"blk.{il}.{row[0]}", *row[1:]) for il, layer in enumerate(model.layers) for row in layer]
    made = {row_name: _values(rng, shape, kind, quant) for row_name, shape, kind in rows} | (tensors or {})
    meta = {"general.name": f"tiny {name}", "tokenizer.ggml.model": "none"}
    keys = {"block_count": len(model.layers), **BASE, **model.metadata, **(metadata or {})}
    meta |= {f"{model.arch}.{key}": value for key, value in keys.items() if value is not None}
    made = {row_name: value for row_name, value in made.items() if value is not None}
    return Tiny(write_gguf(path, model.arch, meta, made), model.arch, keys, meta, made)


def _values(rng, shape, kind, quant):
    if kind == "matrix":
        qtype = QType[quant]
        return random_weights(rng, shape, qtype, 1 / np.sqrt(shape[-1])), qtype
    if kind == "single":
        return _singles(rng, shape, quant)
    if kind == "decay":
        return hybrid.decay(rng, shape), QType.F32
    if kind == "table":  # experts of a token, each once
        return np.argsort(rng.random((shape[0], X)))[:, : shape[1]].astype(np.int32), QType.I32
    if kind == "proportional":  # the first quarter of the pairs is rotated
        return np.where(np.arange(shape[0]) < shape[0] // 4, 1, 1e30).astype(np.float32), QType.F32
    mean, std = {"norm": (1, 0.2), "query norm": (0.15, 0.03), "tiny norm": (0.15, 0.03), "small norm": (0.3, 0.05), "sink": (0, 1), "mix": (0, 1 / 16), "bias": (0, 0.2), "choice": (0, 0.1), "router": (0, 0.3), "factor": (4, 1), "strong": (0, 4), "conv": (0, 0.5)}[kind]
    return (mean + std * rng.standard_normal(shape)).astype(np.float32), QType.F32


def _singles(rng, shape, quant):
    """One weight a row. With F32 its product is the same number in any order of sums, and stock has another one for the
    products of single heads than for all others; 1e-7 of a query would show where attention rounds it to F16."""
    if quant != "F32":
        return random_weights(rng, shape, QType[quant], 1 / np.sqrt(shape[-1])), QType[quant]
    values = np.zeros(shape, np.float32)
    at = rng.integers(0, shape[-1], shape[:-1])[..., None]
    np.put_along_axis(values, at, rng.standard_normal((*shape[:-1], 1)).astype(np.float32), -1)
    return values, QType.F32


def weights_crc(tiny):
    """One number for all tensors: tells a recipe that writes other weights than were recorded."""
    crc = 0
    for name in sorted(tiny.tensors):
        crc = zlib.crc32(tiny.tensors[name][0].tobytes(), zlib.crc32(name.encode(), crc))
    return crc


def prompt(n_tokens=N_TOKENS):
    """int32 (n_tokens,), the same for all."""
    return np.random.default_rng(11).integers(0, V, n_tokens).astype(np.int32)
