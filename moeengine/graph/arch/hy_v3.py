"""hy_v3: Hunyuan 3 (Hy3); layers without a router are dense, the others have experts beside a shared one."""


def build(b):
    hp = b.hparams
    b.tensors.apply_scales()
    b.embed()
    for il in range(hp.n_layer):
        b.attention(il, neox=True, head_norm="head")
        if b.tensors.has(f"blk.{il}.ffn_gate_inp.weight"):
            b.moe(il, norm_topk=hp.expert_weights_norm, gating=hp.expert_gating or "sigmoid",
                  n_ff_shexp=hp.n_ff_shexp or hp.n_ff_exp[il])
        else:
            b.ffn(il)
    b.head()
