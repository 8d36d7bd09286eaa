"""exaone-moe: K-EXAONE-236B-A23B; three layers in four have a sliding window, and only they rotate queries and keys."""


def build(b):
    hp = b.hparams
    windows = b.windows(every=4)
    b.embed()
    for il in range(hp.n_layer):
        b.attention(il, neox=True, head_norm="head", window=windows[il], with_rope=windows[il] > 0)
        if il < hp.n_layer_dense_lead:
            b.ffn(il)
        else:
            b.moe(il, norm_topk=hp.expert_weights_norm, gating=hp.expert_gating, n_ff_shexp=hp.n_ff_shexp or hp.n_ff_exp[il])
    b.head()
