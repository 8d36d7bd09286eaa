"""mimo2: MiMo-V2-Flash; layers with a sliding window have more KV heads, a rope base of their own and sinks, keys are longer
than values, and what attention gives is scaled.

Source: llama.cpp, models/mimo2.cpp.
"""

from moeengine.graph.rope import window_rope


def build(b):
    hp, key = b.hparams, f"{b.hparams.arch}."
    b.tensors.leave_out("scale", "attn_q", "attn_k", "attn_v", "ffn_")
    b.tensors.leave_out("bias", "attn_q", "attn_k", "attn_v")
    windows = b.windows(every=None)
    n_ff_exp = b.file.get_per_layer(key + "expert_feed_forward_length", hp.n_layer, lo=1)
    value_scale = b.file.get_float(key + "attention.value_scale", 0.0) or 1.0
    b.embed(window_rope=window_rope(b.file, hp, default_base=10000.0, scaled=False))
    for il in range(hp.n_layer):
        b.attention(il, neox=True, window=windows[il], sinks=b.tensors.has(f"blk.{il}.attn_sinks.weight"),
                    residual_scale=value_scale)
        if b.tensors.has(f"blk.{il}.ffn_gate_inp.weight"):
            b.moe(il, norm_topk=True, gating="sigmoid", n_ff_exp=n_ff_exp[il])
        else:
            b.ffn(il)
    b.head()
