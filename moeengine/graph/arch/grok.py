"""grok: Grok-1 and Grok-2; scores of attention and logits are capped, norms around every part, experts and the dense network beside
them, where there is one, with GELU.

The router's logits are not capped, whatever the file says, as in llama.cpp. Source: llama.cpp, models/grok.cpp.
"""

import math

from moeengine.graph.rope import MOST_SCALE

LEAST_CAP, MOST_CAP = 1e-3, 1e6


def build(b):
    hp, key = b.hparams, f"{b.hparams.arch}."

    def scale(name, default, lo=-MOST_SCALE, hi=MOST_SCALE):
        return b.file.get_float(key + name, default, lo=lo, hi=hi)

    # Files of Grok-1 may lack them all.
    score_scale = scale("attention.output_scale", 0.08838834764831845)
    cap = scale("attn_logit_softcapping", 30.0, LEAST_CAP, MOST_CAP)
    final_cap = scale("final_logit_softcapping", 0.0, 0.0, MOST_CAP)
    b.embed(scale=scale("embedding_scale", 78.38367176906169) or 1.0, default_beta_fast=8.0)
    for il in range(hp.n_layer):
        blk = f"blk.{il}."
        b.attention(il, neox=True, scale=score_scale, softcap=cap, post_norm="attn_output_norm")
        b.moe(il, norm_topk=True, weights_scale=1.0, activation="gelu", n_ff_exp=hp.n_ff_exp[il] or hp.n_ff[il],
              post_norm="layer_output_norm" if b.tensors.has(blk + "layer_output_norm.weight") else "post_ffw_norm",
              n_ff_shexp=hp.n_ff[il] if b.tensors.has(blk + "ffn_up.weight") else 0, shared="", shared_activation="gelu",
              shared_scale=math.sqrt(2) / 2)
    b.head(scale=scale("logit_scale", 0.5773502691896257), softcap=final_cap)
