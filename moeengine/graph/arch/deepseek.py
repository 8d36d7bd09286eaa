"""deepseek: DeepSeekMoE 16B; plain attention, the weights of the chosen experts are left as they are."""


def build(b):
    hp = b.hparams
    b.embed()
    for il in range(hp.n_layer):
        b.attention(il, neox=False)
        if il < hp.n_layer_dense_lead:
            b.ffn(il)
        else:
            b.moe(il, norm_topk=False, n_ff_shexp=hp.n_ff_exp[il] * hp.n_expert_shared)
    b.head()
