"""cohere2moe: North-Mini-Code and its kin; attention and the network of a layer read the same norm, three layers in four have a sliding
window, and only these rotate, and dense ones.

Source: llama.cpp, models/cohere2moe.cpp.
"""


def build(b):
    b.tensors.apply_scales()
    key = f"{b.hparams.arch}."
    if not b.file.get_float(key + "attention.layer_norm_rms_epsilon", 0.0):
        b.layer_norms(eps=0.0)
    hp = b.hparams
    windows = b.windows(every=4, dense_first=True)
    b.embed()
    for il in range(hp.n_layer):
        is_dense = il < hp.n_layer_dense_lead
        b.keep()
        b.attention(il, neox=False, scale=hp.head_dim_k**-0.5, window=windows[il], with_rope=windows[il] > 0 or is_dense)
        if is_dense:
            b.ffn(il, norm="attn_norm", of_kept=True)
            continue
        n_ff_exp = hp.n_ff_exp[il] or hp.n_ff[il]
        n_shared = (hp.n_ff_shexp or n_ff_exp * hp.n_expert_shared) if hp.n_expert_shared else 0
        b.moe(il, norm="attn_norm", of_kept=True, norm_topk=hp.expert_weights_norm, gating=hp.expert_gating or "sigmoid",
              n_ff_exp=n_ff_exp, n_ff_shexp=n_shared, shared_scale=0.5)
    b.head(scale=b.file.get_float(key + "logit_scale") or 1.0)
