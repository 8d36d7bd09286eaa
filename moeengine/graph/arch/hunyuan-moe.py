"""hunyuan-moe: Hunyuan-A13B; queries and keys are normed after their rotation."""


def build(b):
    hp = b.hparams
    b.embed()
    for il in range(hp.n_layer):
        b.attention(il, neox=True, head_norm="head", norm_after_rope=True)
        b.moe(il, norm_topk=True, n_ff_shexp=hp.n_ff_shexp or hp.n_ff[il])
    b.head()
