"""jamba: Jamba and Jamba 1.5 (Mini, Large); Mamba-1 in the layers that have no KV heads, attention without rope in the others, and
experts in some of both.

Source: llama.cpp, models/jamba.cpp.
"""

from moeengine.graph.selective import mamba, selective_shape


def build(b):
    hp, shape = b.hparams, selective_shape(b.file)
    b.tensors.leave_out("bias", "attn_output")
    b.embed(with_rope=False)
    for il in range(hp.n_layer):
        if hp.n_head_kv[il]:
            b.attention(il, neox=False, with_rope=False, scale=hp.head_dim_k**-0.5)
        else:
            mamba(b, il, shape)
        if any(b.tensors.has(f"blk.{il}.ffn_{part}.weight") for part in ("gate_inp", "down_exps")):
            b.moe(il, norm_topk=False, weights_scale=1.0, n_ff_exp=hp.n_ff[il])
        else:
            b.ffn(il)
    b.head()
