"""mistral3: Ministral 3 and its kin; llama whose queries grow with their position, so that attention stays sharp over long texts.

Source: llama.cpp, models/mistral3.cpp.
"""

from moeengine.graph.rope import original_context


def build(b):
    hp, file, key = b.hparams, b.file, f"{b.hparams.arch}."
    b.tensors.apply_scales()
    if not hp.n_rot == hp.head_dim_k == hp.head_dim_v:
        file.refuse(key + "rope.dimension_count", hp.n_rot, f"whole heads (keys of {hp.head_dim_k}, values of {hp.head_dim_v})")
    growth = file.get_float(key + "attention.temperature_scale", 0.0)
    temperature = (growth, original_context(file, hp.n_ctx_train), 0) if growth else (0, 1, 0)
    b.embed()
    for il in range(hp.n_layer):
        b.attention(il, neox=False, temperature=temperature)
        if hp.n_expert:
            b.moe(il, norm_topk=True, n_ff_exp=hp.n_ff[il] or None)
        else:
            b.ffn(il)
    b.head()
