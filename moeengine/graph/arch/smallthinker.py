"""smallthinker: SmallThinker-21BA3B and 4BA0.6B; a layer's experts are chosen before its attention, their gate is a ReLU.

In files with a sliding window three layers in four have one, of 4096 keys whatever the file says, and only they rotate.

Source: llama.cpp, models/smallthinker.cpp.
"""

from moeengine.graph.rope import window_rope

WINDOW = 4096
EVERY = 4


def build(b):
    hp = b.hparams
    with_windows = b.file.get_int(f"{hp.arch}.attention.sliding_window", 0, lo=0) > 0
    windows = b.windows(every=EVERY, dense_first=True) if with_windows else [0] * hp.n_layer
    b.embed(window_rope=window_rope(b.file, hp) if with_windows else None)
    for il in range(hp.n_layer):
        router = b.early_router(il)
        b.attention(il, neox=True, window=WINDOW if windows[il] else 0, with_rope=not with_windows or il % EVERY != 0)
        b.moe(il, norm_topk=True, gating=hp.expert_gating, activation="relu", router=router)
    b.head()
