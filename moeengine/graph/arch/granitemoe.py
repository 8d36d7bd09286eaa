"""granitemoe: Granite 3 MoE (1B-A400M, 3B-A800M); the embedding, every addition to the residual stream and the logits are
scaled by factors of the file."""


def build(b):
    hp, file = b.hparams, b.file
    b.tensors.leave_out("scale", "ffn_")
    residual_scale = file.get_float(f"{hp.arch}.residual_scale", 0.0) or 1.0
    logit_scale = file.get_float(f"{hp.arch}.logit_scale", lo=1e-6)
    b.embed(scale=file.get_float(f"{hp.arch}.embedding_scale", 0.0) or 1.0)
    for il in range(hp.n_layer):
        b.attention(il, neox=False, residual_scale=residual_scale)
        if hp.n_expert:
            b.moe(il, norm_topk=True, n_ff_shexp=hp.n_ff_shexp, residual_scale=residual_scale)
        else:
            b.ffn(il, residual_scale=residual_scale)
    b.head(scale=1 / logit_scale)
