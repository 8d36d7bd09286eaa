"""afmoe: Trinity Nano, Mini and Large; a gate for every value of attention, norms before and after every block, and every fourth
layer sees all keys, which it does not rotate.

Source: llama.cpp, models/afmoe.cpp.
"""

import math

from moeengine.graph.rope import window_rope

UNROTATED = 4  # every so many layers


def build(b):
    hp, file, key = b.hparams, b.file, f"{b.hparams.arch}."
    b.tensors.leave_out("scale", "attn_gate", "ffn_")
    has_windows = file.get_int(key + "attention.sliding_window", 0, lo=0) > 0
    windows = b.windows(every=4) if has_windows else [0] * hp.n_layer
    n_ff_exp = file.get_per_layer(key + "expert_feed_forward_length", hp.n_layer, lo=1)
    n_shared = file.get_int(key + "expert_shared_count", lo=0, hi=1 << 16)
    b.embed(scale=math.sqrt(hp.n_embd), window_rope=window_rope(file, hp) if has_windows else None)
    for il in range(hp.n_layer):
        b.attention(il, neox=True, head_norm="head", window=windows[il], with_rope=(il + 1) % UNROTATED != 0, gate="values",
                    post_norm="post_attention_norm")
        if il < hp.n_layer_dense_lead:
            b.ffn(il, post_norm="post_ffw_norm")
        else:
            b.tensors.info(f"blk.{il}.exp_probs_b.bias")
            b.moe(il, norm_topk=hp.expert_weights_norm, gating=hp.expert_gating or "sigmoid", n_ff_exp=n_ff_exp[il],
                  n_ff_shexp=n_shared * n_ff_exp[il], post_norm="post_ffw_norm")
    b.head()
