"""dots1: dots.llm1; one or more dense layers first, then experts beside shared ones."""


def build(b):
    hp = b.hparams
    b.embed()
    for il in range(hp.n_layer):
        b.attention(il, neox=True, head_norm="head")
        if il < hp.n_layer_dense_lead:
            b.ffn(il)
        else:
            b.moe(il, norm_topk=hp.expert_weights_norm, gating=hp.expert_gating,
                  n_ff_shexp=hp.n_ff_exp[il] * hp.n_expert_shared)
    b.head()
