"""qwen35moe: Qwen3.5-35B-A3B and its kin; three gated delta nets, then one attention whose result is gated; experts with
a shared one behind a gate of its own."""

from moeengine.graph import hybrid


def build(b):
    hp = b.hparams
    b.tensors.apply_scales()
    mix = hybrid.mixer(b)
    b.embed(sections="interleaved")
    for il in range(hp.n_layer):
        mix(il)
        b.moe(il, norm_topk=True, norm="post_attention_norm", n_ff_shexp=hp.n_ff_shexp or hp.n_ff[il], shared_gate=True)
    b.head()
