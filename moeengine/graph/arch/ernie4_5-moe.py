"""ernie4_5-moe: ERNIE 4.5 21B-A3B, 300B-A47B; rope on neighbouring values, a bias for the choice of experts beside softmax."""


def build(b):
    hp = b.hparams
    b.tensors.leave_out("bias", "attn_output")
    step = b.file.get_int(f"{hp.arch}.interleave_moe_layer_step", 1, lo=1)
    b.embed()
    for il in range(hp.n_layer):
        b.attention(il, neox=False)
        if il >= hp.n_layer_dense_lead and (il + 1) % step == 0:
            b.moe(il, norm_topk=True, n_ff_shexp=hp.n_ff_shexp)
        else:
            b.ffn(il)
    b.head()
