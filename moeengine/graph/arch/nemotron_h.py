"""nemotron_h: Nemotron-H (8B, 47B, 56B) and Nemotron Nano 2; a layer is Mamba-2, attention without rope, or a network without a
gate: one of them, behind one norm."""

from moeengine.errors import UnsupportedError
from moeengine.graph import state_space


def build(b):
    hp, file, shape = b.hparams, b.file, state_space.mamba_shape(b.file)
    b.tensors.apply_scales()
    if file.get_int(f"{hp.arch}.moe_latent_size", 0, lo=0):
        raise UnsupportedError(f"{file.files[0].path}: key {hp.arch}.moe_latent_size: experts over latents are not supported")
    b.embed(with_rope=False)
    for il in range(hp.n_layer):
        if not hp.n_ff[il] and not hp.n_head_kv[il]:
            state_space.mamba2(b, il, shape)
        elif not hp.n_ff[il]:
            b.attention(il, neox=False, with_rope=False)
        elif hp.n_expert:
            b.moe(il, norm="attn_norm", norm_topk=hp.expert_weights_norm, gating="sigmoid", gated=False, n_ff_shexp=hp.n_ff_shexp,
                  n_ff_exp=hp.n_ff_exp[il] or hp.n_ff[il] // hp.n_expert_used)
        else:
            b.ffn(il, norm="attn_norm", gated=False)
    b.head()
