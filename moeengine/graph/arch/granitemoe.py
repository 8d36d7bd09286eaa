"""granitemoe: Granite 3 MoE (1B-A400M, 3B-A800M); the embedding, every addition to the residual stream and the logits are
scaled by factors of the file."""


def build(b, with_rope=True):
    file, key = b.file, f"{b.hparams.arch}."
    build_scaled(b, embedding=file.get_float(key + "embedding_scale", 0.0), residual=file.get_float(key + "residual_scale", 0.0),
                 logit=file.get_float(key + "logit_scale", lo=1e-6), with_rope=with_rope)


def build_scaled(b, *, embedding, residual, logit, with_rope=True, attention=None):
    """All of a model whose values are scaled: 0 for not at all; logits are divided; attention: see Builder.attention."""
    hp, residual_scale = b.hparams, residual or 1.0
    b.embed(scale=embedding or 1.0, with_rope=with_rope)
    for il in range(hp.n_layer):
        b.attention(il, neox=False, residual_scale=residual_scale, with_rope=with_rope, scale=attention)
        if hp.n_expert:
            b.moe(il, norm_topk=True, n_ff_shexp=hp.n_ff_shexp, residual_scale=residual_scale)
        else:
            b.ffn(il, residual_scale=residual_scale)
    b.head(scale=1 / logit)
