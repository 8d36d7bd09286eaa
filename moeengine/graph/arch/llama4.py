"""llama4: Llama 4 Scout and Maverick; three layers in four see chunks of 8192 positions, whatever the file says, and rotate; the
others see all there are and make queries longer with their position. A token's weight is a factor of what its expert reads.

Source: llama.cpp, models/llama4.cpp.
"""

from moeengine.errors import UnsupportedError
from moeengine.graph.hparams import MAX_LAYERS
from moeengine.graph.rope import window_rope

CHUNK = 8192
EVERY = 4  # layer that does not rotate; also the one that sees all where the file does not say
TEMPERATURE = (0.1, 8192, 1)
WITHOUT_NORM = 128  # experts: Maverick does not norm queries and keys


def build(b):
    hp, file, key = b.hparams, b.file, f"{b.hparams.arch}."
    if file.get_int(key + "attention.sliding_window", CHUNK, lo=0) == 0:
        raise UnsupportedError(f"{file.files[0].path}: key {key}attention.sliding_window: 0 is not supported: layers without "
                               "chunks that all rotate")
    step = file.get_int(key + "interleave_moe_layer_step", lo=0, hi=MAX_LAYERS)
    n_ff_exp = file.get_per_layer(key + "expert_feed_forward_length", hp.n_layer, lo=1)
    windows = b.windows(every=EVERY, window=CHUNK)
    factors = b.tensors.vector("rope_freqs.weight", hp.n_rot // 2, optional=True)
    b.embed(window_rope=window_rope(file, hp, freq_factors=factors))
    for il in range(hp.n_layer):
        rotates = (il + 1) % EVERY != 0
        b.attention(il, neox=False, scale=hp.head_dim_k ** -0.5, window=windows[il], chunked=windows[il] > 0, with_rope=rotates,
                    head_norm="unit" if rotates and hp.n_expert != WITHOUT_NORM else None, norm_after_rope=True,
                    temperature=(0, 1, 0) if rotates else TEMPERATURE)
        if step and (il + 1) % step == 0:
            b.moe(il, norm_topk=False, gating="sigmoid_topk", weigh_inputs=True, weights_scale=1.0,
                  n_ff_exp=n_ff_exp[il], n_ff_shexp=n_ff_exp[il])
        else:
            b.ffn(il)
    b.head()
