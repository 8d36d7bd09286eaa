"""qwen3: dense Qwen 3; queries and keys are normed a head."""


def build(b):
    b.tensors.apply_scales()
    b.embed()
    for il in range(b.hparams.n_layer):
        b.attention(il, neox=True, head_norm="head")
        b.ffn(il)
    b.head()
