"""grovemoe: GroveMoE-Inst and -Base; every two experts share a small one that reads what the chosen ones gave.

Source: llama.cpp, models/grovemoe.cpp.
"""

from moeengine.graph.hparams import MAX_COUNT


def build(b):
    hp, file, key = b.hparams, b.file, f"{b.hparams.arch}."
    n_sharing = file.get_int(key + "experts_per_group", lo=1, hi=MAX_COUNT)
    n_ff = file.get_int(key + "expert_chunk_feed_forward_length", 0, lo=0, hi=MAX_COUNT) or hp.head_dim_k
    scale = file.get_float(key + "expert_group_scale")
    if hp.n_expert % n_sharing:
        file.refuse(key + "experts_per_group", n_sharing, f"a divisor of {key}expert_count = {hp.n_expert}")
    b.embed()
    for il in range(hp.n_layer):
        b.attention(il, neox=True, head_norm="head")
        b.moe(il, norm_topk=True)
        b.chunk_experts(il, n_sharing=n_sharing, n_ff=n_ff, scale=scale)
    b.head()
