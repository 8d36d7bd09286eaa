"""granitehybrid: Granite 4.0 H (Tiny, Small, and the dense 350M, Micro and 1B); Mamba-2 layers, and attention where a layer has
KV heads; scaled as granitemoe."""

from moeengine.graph import state_space


def build(b):
    hp, file, shape = b.hparams, b.file, state_space.mamba_shape(b.file)
    residual_scale = file.get_float(f"{hp.arch}.residual_scale", 0.0) or 1.0
    logit_scale = file.get_float(f"{hp.arch}.logit_scale", 1.0, lo=1e-6)
    with_rope = file.get_bool(f"{hp.arch}.rope.scaling.finetuned", True)  # the models know positions from their states
    b.embed(scale=file.get_float(f"{hp.arch}.embedding_scale", 0.0) or 1.0, with_rope=with_rope)
    for il in range(hp.n_layer):
        if hp.n_head_kv[il]:
            b.attention(il, neox=False, residual_scale=residual_scale, with_rope=with_rope)
        else:
            state_space.mamba2(b, il, shape, residual_scale=residual_scale)
        if hp.n_expert:
            b.moe(il, norm_topk=True, n_ff_shexp=hp.n_ff_shexp, residual_scale=residual_scale)
        else:
            b.ffn(il, residual_scale=residual_scale)
    b.head(scale=1 / logit_scale)
