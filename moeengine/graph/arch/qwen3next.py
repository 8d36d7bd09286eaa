"""qwen3next: Qwen3-Next-80B-A3B; as qwen35moe, but the heads of a delta net lie group by group.

Early files that hold all projections of a delta net in one `ssm_in` are not supported.
"""

from moeengine.graph import hybrid


def build(b):
    hp = b.hparams
    b.tensors.leave_out("scale", "attn_qkv", "attn_gate", "ssm_")
    mix = hybrid.mixer(b, by_group=True)
    b.embed()
    for il in range(hp.n_layer):
        mix(il)
        b.moe(il, norm_topk=True, norm="post_attention_norm", n_ff_shexp=hp.n_ff_shexp or hp.n_ff[il], shared_gate=True)
    b.head()
