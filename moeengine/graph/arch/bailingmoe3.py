"""bailingmoe3: Ling 3.0 and Ring 3.0; Kimi delta attention whose rates have a bound, and in some layers latent attention with a
gate a head.

Source: llama.cpp, models/bailingmoe3.cpp.
"""

import dataclasses

from moeengine.errors import UnsupportedError
from moeengine.graph import delta_attention, latent
from moeengine.graph.hparams import bounds_per_layer

MOST_RATE = 1e6  # of forgetting; published models have 5


def build(b):
    hp, file, key = b.hparams, b.file, f"{b.hparams.arch}."
    b.tensors.leave_out("scale", "")
    sections = file.get_array(key + "rope.dimension_sections", None, kind="int")
    rope = b.embed(sections="blocks")
    layers = [il for il in range(hp.n_layer) if hp.n_head_kv[il]]
    shape = latent.latent_shape(b, rope, layers=layers, n_lora_q=file.get_int(key + "attention.q_lora_rank", 0, lo=0, hi=latent.MAX_COUNT),
                                scaled=False, neox=sections is not None and all(sections[:2] > 0))
    if not shape.absorbed:
        file.refuse(key + "attention.key_length_mla", 0, "that of files with absorbed up-projections")
    none = [0.0] * hp.n_layer
    bounds, shared_bounds = (bounds_per_layer(b, f"{key}swiglu_clamp_{part}", none) for part in ("exp", "shexp"))
    n_ff_exp = file.get_per_layer(key + "expert_feed_forward_length", hp.n_layer, lo=1)
    file.get_int(key + "expert_shared_count", lo=0)
    file.get_int(key + "leading_dense_block_count", lo=0)
    kda = kda_shape(b)
    for il in range(hp.n_layer):
        if hp.n_head_kv[il]:
            latent.attention(b, il, shape, gate="heads")
        else:
            delta_attention.kda(b, il, kda)
        if il < hp.n_layer_dense_lead:
            b.ffn(il, activation="silu_bounded", bound=shared_bounds[il])
        else:
            b.tensors.info(f"blk.{il}.exp_probs_b.bias")
            b.moe(il, norm_topk=hp.expert_weights_norm, gating=None, n_ff_exp=n_ff_exp[il],
                  n_ff_shexp=hp.n_ff_shexp or n_ff_exp[il] * max(1, hp.n_expert_shared), activation="silu_bounded",
                  bound=bounds[il], shared_activation="silu_bounded", shared_bound=shared_bounds[il])
    b.head()


def kda_shape(b):
    """KdaShape with what bounds the rates."""
    file, key = b.file, f"{b.hparams.arch}.kda."
    if not file.get_bool(key + "safe_gate", True):
        raise UnsupportedError(f"{file.files[0].path}: key {key}safe_gate: false is not supported; supported: true, or none")
    least = file.get_float(key + "gate_lower_bound", lo=-MOST_RATE, hi=MOST_RATE)
    if not least < 0:
        file.refuse(key + "gate_lower_bound", least, "less than 0")
    return dataclasses.replace(delta_attention.kda_shape(file), narrow=False, least_log=least)
