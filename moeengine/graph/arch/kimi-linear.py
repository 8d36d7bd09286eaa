"""kimi-linear: Kimi-Linear-48B-A3B; three layers of Kimi delta attention, then one of latent attention that rotates nothing."""

from moeengine.graph import delta_attention, latent


def build(b):
    hp, file = b.hparams, b.file
    b.embed(with_rope=False)
    shape = latent.latent_shape(b, None, layers=[il for il in range(hp.n_layer) if hp.n_head_kv[il]])
    if not shape.absorbed:
        file.refuse(f"{hp.arch}.attention.key_length_mla", 0, "that of files with absorbed up-projections")
    kda = delta_attention.kda_shape(file)
    n_shared = file.get_int(f"{hp.arch}.expert_shared_count", lo=0, hi=1 << 16)
    n_ff_exp = file.get_per_layer(f"{hp.arch}.expert_feed_forward_length", hp.n_layer, lo=1)
    for il in range(hp.n_layer):
        if hp.n_head_kv[il]:
            latent.attention(b, il, shape)
        else:
            delta_attention.kda(b, il, kda)
        if il < hp.n_layer_dense_lead:
            b.ffn(il)
        else:
            b.moe(il, norm_topk=True, gating=None, n_ff_exp=n_ff_exp[il], n_ff_shexp=n_ff_exp[il] * max(1, n_shared))
    b.head()
