"""glm4moe: GLM-4.5, 4.5-Air, 4.6 and the text part of GLM-4.5V.

The norm before the feed-forward network is called post_attention_norm. Queries and keys are normed in the large models only.
"""


def build(b):
    hp = b.hparams
    b.embed(sections="blocks")
    for il in range(hp.n_layer):
        has_head_norm = b.tensors.has(f"blk.{il}.attn_q_norm.weight")
        b.attention(il, neox=True, head_norm="head" if has_head_norm else None)
        if il < hp.n_layer_dense_lead:
            b.ffn(il, norm="post_attention_norm")
        else:
            b.moe(il, norm="post_attention_norm", gating=hp.expert_gating or "sigmoid", norm_topk=hp.expert_weights_norm,
                  n_ff_shexp=hp.n_ff_exp[il] * hp.n_expert_shared)
    b.head()
