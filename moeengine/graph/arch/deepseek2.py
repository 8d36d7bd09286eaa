"""deepseek2: DeepSeek-V2, V2-Lite, V2.5, V3, R1, Kimi-K2, GLM-4.7-Flash and their kin; latent attention, shared experts.

Source: llama.cpp, models/deepseek2.cpp.
"""

from moeengine.graph import latent

SIGMOID_VOCABULARY, SIGMOID_LAYERS = 154880, (47, 48)  # GLM-4.7-Flash, whose first files name no gating


def build(b, indexers=None):
    """indexers : see latent.attention"""
    hp = b.hparams
    shape = latent.latent_shape(b, b.embed(log_multiplier_cancels=True))
    if indexers and not shape.absorbed:
        b.file.refuse(f"{hp.arch}.attention.key_length_mla", 0, "1 or more: an indexer chooses among absorbed latents")
    n_shared = b.file.get_int(f"{hp.arch}.expert_shared_count", lo=0, hi=1 << 16)
    n_ff_exp = b.file.get_per_layer(f"{hp.arch}.expert_feed_forward_length", hp.n_layer, lo=1)
    for il in range(hp.n_layer):
        latent.attention(b, il, shape, indexers)
        if il < hp.n_layer_dense_lead:
            b.ffn(il)
        else:
            b.moe(il, norm_topk=hp.expert_weights_norm, gating=hp.expert_gating or usual_gating(hp), n_ff_exp=n_ff_exp[il],
                  n_ff_shexp=n_ff_exp[il] * n_shared)
    b.head()


def usual_gating(hp):
    """Of a file that does not say."""
    is_glm = hp.n_vocab == SIGMOID_VOCABULARY and hp.n_layer in SIGMOID_LAYERS
    return "sigmoid" if is_glm else "softmax"
