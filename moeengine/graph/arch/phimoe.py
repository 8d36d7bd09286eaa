"""phimoe: Phi-3.5-MoE; norms, projections and the head have biases, and a context beyond the original one has rope factors
of its own.

Its sliding window is left out, as in llama.cpp.
"""


def build(b):
    b.embed()
    for il in range(b.hparams.n_layer):
        b.attention(il, neox=True, scale_queries=True)
        b.moe(il, norm_topk=True)
    b.head()
