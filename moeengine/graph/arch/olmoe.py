"""olmoe: OLMoE-1B-7B; queries and keys are normed over all heads at once."""


def build(b):
    b.embed()
    for il in range(b.hparams.n_layer):
        b.attention(il, neox=True, head_norm="row")
        b.moe(il, norm_topk=False)
    b.head()
