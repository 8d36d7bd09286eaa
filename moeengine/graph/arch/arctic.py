"""arctic: Snowflake Arctic; a small dense network in every layer, and beside the whole layer experts, which read what the layer read.

Source: llama.cpp, models/arctic.cpp.
"""


def build(b):
    hp = b.hparams
    b.tensors.leave_out("bias", "attn_output")
    b.embed()
    for il in range(hp.n_layer):
        b.keep()
        b.attention(il, neox=False, scale=hp.head_dim_k**-0.5)
        b.ffn(il, n_ff=hp.n_embd)
        b.moe(il, norm="ffn_norm_exps", of_kept=True, norm_topk=True, weights_scale=1.0, n_ff_exp=hp.n_ff[il])
    b.head()
