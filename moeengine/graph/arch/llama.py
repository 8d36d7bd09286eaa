"""llama: Llama 2 and 3, SmolLM, Mistral; with experts: Mixtral. Rope on neighbouring values."""


def build(b):
    hp = b.hparams
    b.tensors.apply_scales()
    b.embed()
    for il in range(hp.n_layer):
        b.attention(il, neox=False)
        if b.tensors.has(f"blk.{il}.ffn_gate_inp.weight"):
            b.moe(il, norm_topk=True)
        else:
            b.ffn(il)
    b.head()
