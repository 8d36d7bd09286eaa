"""maple: Maple 20B; layers with a sliding window rotate, the others do not, and experts bound their activations.

Source: llama.cpp, models/maple.cpp.
"""

from moeengine.graph.hparams import bounds_per_layer
from moeengine.graph.rope import window_rope


def build(b):
    hp, file, key = b.hparams, b.file, f"{b.hparams.arch}."
    windows = b.windows(every=None)
    n_ff_exp = file.get_per_layer(key + "expert_feed_forward_length", hp.n_layer, lo=1)
    bounds = bounds_per_layer(b, key + "swiglu_clamp_exp")
    b.embed(window_rope=window_rope(file, hp, n_rot=file.get_int(key + "rope.dimension_count_swa", hp.n_rot, lo=0, hi=hp.head_dim_k)))
    for il in range(hp.n_layer):
        b.attention(il, neox=True, head_norm="head", window=windows[il], with_rope=windows[il] > 0, scale=hp.head_dim_k**-0.5)
        b.moe(il, norm_topk=True, gating="softmax", weights_scale=1.0, n_ff_exp=n_ff_exp[il], activation="swiglu_clamp",
              bound=bounds[il])
    b.head()
