"""ernie4_5: ERNIE 4.5 0.3B, whose layers are the dense ones of ernie4_5-moe."""


def build(b):
    b.tensors.leave_out("bias", "attn_output", "ffn_")
    b.embed()
    for il in range(b.hparams.n_layer):
        b.attention(il, neox=False)
        b.ffn(il)
    b.head()
