"""step35: Step-3.5-Flash; layers with a sliding window have more heads and rotate them whole, others a half; every head's result
has a gate, and the activations of some layers are bounded.

Source: llama.cpp, models/step35.cpp.
"""

from moeengine.graph.hparams import bounds_per_layer
from moeengine.graph.rope import window_rope


def build(b):
    hp, file, key = b.hparams, b.file, f"{b.hparams.arch}."
    b.tensors.leave_out("scale", "attn_gate", "ffn_")
    windows = b.windows(every=None)
    n_ff_exp = file.get_per_layer(key + "expert_feed_forward_length", hp.n_layer, lo=1)
    none = [0.0] * hp.n_layer
    bounds, dense_bounds = (bounds_per_layer(b, f"{key}swiglu_clamp_{part}", none) for part in ("exp", "shexp"))
    n_rot = file.get_int(key + "rope.dimension_count_swa", hp.n_rot, lo=0, hi=hp.head_dim_k)
    widest = max(n_rot if window else hp.n_rot // 2 for window in windows)
    b.embed(n_rot=hp.n_rot // 2, n_factors=widest // 2,
            window_rope=window_rope(file, hp, n_rot=n_rot, default_base=10000.0, scaled=False))
    for il in range(hp.n_layer):
        blk = f"blk.{il}."
        b.attention(il, neox=True, window=windows[il], head_norm="head" if b.tensors.has(blk + "attn_q_norm.weight") else None,
                    gate="heads" if b.tensors.has(blk + "attn_gate.weight") else None)
        if b.tensors.has(blk + "ffn_gate_inp.weight"):
            b.moe(il, norm_topk=hp.expert_weights_norm, gating=hp.expert_gating or "sigmoid", n_ff_exp=n_ff_exp[il],
                  n_ff_shexp=hp.n_ff_shexp, activation="silu_bounded", bound=bounds[il],
                  shared_activation="silu_bounded", shared_bound=dense_bounds[il])
        else:
            b.ffn(il, activation="silu_bounded", bound=dense_bounds[il])
    b.head()
