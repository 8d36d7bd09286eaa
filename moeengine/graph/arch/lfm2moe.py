"""lfm2moe: LFM2-8B-A1B and LFM2-24B-A2B; the layers of lfm2, with experts behind all but the first ones."""

from moeengine.graph.arch.lfm2 import mix


def build(b):
    hp = b.hparams
    b.embed()
    for il in range(hp.n_layer):
        mix(b, il)
        if il < hp.n_layer_dense_lead:
            b.ffn(il)
        else:
            b.moe(il, norm_topk=True, gating=hp.expert_gating)
    b.head(norm="token_embd_norm")
