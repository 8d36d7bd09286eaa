"""qwen2moe: Qwen1.5-MoE, Qwen2-57B-A14B; a shared expert behind a sigmoid gate of its own."""


def build(b):
    hp = b.hparams
    n_ff_shexp = b.file.get_int(f"{hp.arch}.expert_shared_feed_forward_length", 0, lo=0)
    b.embed()
    for il in range(hp.n_layer):
        b.attention(il, neox=True)
        b.moe(il, norm_topk=False, n_ff_shexp=n_ff_shexp or hp.n_ff[il], shared_gate=True)
    b.head()
