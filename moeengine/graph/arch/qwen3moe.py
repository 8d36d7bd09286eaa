"""qwen3moe: Qwen3-30B-A3B and its kin; top-k weights are divided by their sum."""


def build(b):
    b.tensors.apply_scales()
    b.embed()
    for il in range(b.hparams.n_layer):
        b.attention(il, neox=True, head_norm="head")
        b.moe(il, norm_topk=True)
    b.head()
