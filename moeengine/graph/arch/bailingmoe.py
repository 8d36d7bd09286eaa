"""bailingmoe: Ling-lite, Ling-plus and Ling-Coder-lite of the first generation; experts beside shared ones in every layer."""


def build(b):
    hp = b.hparams
    b.embed()
    for il in range(hp.n_layer):
        b.attention(il, neox=False)
        b.moe(il, norm_topk=hp.expert_weights_norm, n_ff_shexp=hp.n_ff_exp[il] * hp.n_expert_shared)
    b.head()
