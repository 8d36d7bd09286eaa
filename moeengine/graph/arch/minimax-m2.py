"""minimax-m2: MiniMax-M2; queries and keys are normed over all heads at once, half of a head is rotated."""


def build(b):
    b.embed()
    for il in range(b.hparams.n_layer):
        b.attention(il, neox=True, head_norm="row")
        b.moe(il, norm_topk=True, gating=b.hparams.expert_gating)
    b.head()
