"""laguna: Laguna XS.2, S.2 and M.1; what attention gives is multiplied with the softplus of gates, one a head or one a value; most
layers may have a sliding window, more heads, and a rope of their own.

Source: llama.cpp, models/laguna.cpp.
"""

import dataclasses

from moeengine.graph.rope import window_rope


def build(b):
    hp, file, key = b.hparams, b.file, f"{b.hparams.arch}."
    b.tensors.leave_out("scale", "attn_gate", "ffn_")
    if hp.head_dim_v != hp.head_dim_k:
        file.refuse(key + "attention.value_length", hp.head_dim_v, f"{hp.head_dim_k} as {key}attention.key_length")
    file.get_int(key + "leading_dense_block_count", lo=0)
    n_ff_exp = file.get_per_layer(key + "expert_feed_forward_length", hp.n_layer, lo=1)
    windows, rope = [0] * hp.n_layer, None
    if file.get_int(key + "attention.sliding_window", 0, lo=0):
        windows = b.windows(every=4, dense_first=True)
        rope = plain(window_rope(file, hp, n_rot=file.get_int(key + "rope.dimension_count_swa", hp.n_rot, lo=0, hi=hp.head_dim_k),
                                 scaled=False))
    b.embed(window_rope=rope)
    for il in range(hp.n_layer):
        is_gate_a_head = b.tensors.info(f"blk.{il}.attn_gate.weight", (None, hp.n_embd)).shape[0] == hp.n_head[il]
        b.attention(il, neox=True, head_norm="head", window=windows[il], gate="heads" if is_gate_a_head else "values",
                    softplus_gate=True)
        if il < hp.n_layer_dense_lead:
            b.ffn(il)
        else:
            b.tensors.info(f"blk.{il}.exp_probs_b.bias")
            b.moe(il, norm_topk=hp.expert_weights_norm, gating=hp.expert_gating or "sigmoid", n_ff_exp=n_ff_exp[il],
                  n_ff_shexp=hp.n_ff_shexp or n_ff_exp[il] * (hp.n_expert_shared or 1))
    b.head()


def plain(rope):
    """The RopeConfig without what a longer context multiplies attention with."""
    return rope and dataclasses.replace(rope, attn_factor=1.0)
