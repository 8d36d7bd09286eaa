"""qwen35: dense Qwen 3.5; layers as in qwen35moe, without experts."""

from moeengine.graph import hybrid


def build(b):
    b.tensors.apply_scales()
    mix = hybrid.mixer(b)
    b.embed(sections="interleaved")
    for il in range(b.hparams.n_layer):
        mix(il)
        b.ffn(il, norm="post_attention_norm")
    b.head()
