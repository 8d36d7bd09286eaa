"""dbrx: DBRX; norms take the mean off, and queries, keys and values are bounded.

Source: llama.cpp, models/dbrx.cpp.
"""


def build(b):
    b.tensors.leave_out("bias", "attn_output")
    b.layer_norms()
    hp = b.hparams
    bound = b.file.get_float(f"{hp.arch}.attention.clamp_kqv", lo=0)
    b.embed()
    for il in range(hp.n_layer):
        b.attention(il, neox=True, scale=hp.head_dim_k**-0.5, clamp=bound)
        b.moe(il, norm_topk=True, norm="attn_output_norm", weights_scale=1.0, n_ff_exp=hp.n_ff[il])
    b.head()
