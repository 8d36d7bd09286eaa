"""bailingmoe2: Ling 2.0 and Ring 2.0 (mini, flash, 1T); experts are chosen from the best groups, half of a head is rotated."""


def build(b):
    hp = b.hparams
    b.embed()
    for il in range(hp.n_layer):
        b.attention(il, neox=True, head_norm="head")
        if il < hp.n_layer_dense_lead:
            b.ffn(il)
        else:
            b.moe(il, norm_topk=hp.expert_weights_norm, gating=hp.expert_gating,
                  n_ff_shexp=(hp.n_ff_shexp or hp.n_ff_exp[il]) * hp.n_expert_shared)
    b.head()
