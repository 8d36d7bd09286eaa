"""qwen2: dense Qwen 1.5, 2 and 2.5; biases on q, k and v."""


def build(b):
    b.embed()
    for il in range(b.hparams.n_layer):
        b.attention(il, neox=True)
        b.ffn(il)
    b.head()
