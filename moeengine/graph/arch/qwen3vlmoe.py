"""qwen3vlmoe: the text part of Qwen3-VL-30B-A3B and 235B-A22B; qwen3moe with the rope of images and videos."""


def build(b):
    b.embed(sections="interleaved")
    for il in range(b.hparams.n_layer):
        b.attention(il, neox=True, head_norm="head")
        b.moe(il, norm_topk=True)
    b.head()
