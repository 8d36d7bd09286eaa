"""mellum: Mellum2-12B-A2.5B; three layers in four have a sliding window, and only the others stretch their angles.

Source: llama.cpp, models/mellum.cpp.
"""

from dataclasses import replace

from moeengine.graph.rope import rope_config


def build(b):
    hp = b.hparams
    b.tensors.apply_scales()
    windows, plain = [0] * hp.n_layer, None
    if b.file.get_int(f"{hp.arch}.attention.sliding_window", 0, lo=0):
        windows = b.windows(every=4)
        if hp.n_rot:
            rope = rope_config(b.file, n_rot=hp.n_rot, n_ctx_train=hp.n_ctx_train)
            plain = replace(rope, freq_scale=1.0, ext_factor=0.0, attn_factor=1.0)
    b.embed(window_rope=plain)
    for il in range(hp.n_layer):
        b.attention(il, neox=True, head_norm="head", window=windows[il])
        b.moe(il, norm_topk=True)
    b.head()
