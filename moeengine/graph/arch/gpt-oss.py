"""gpt-oss: gpt-oss-20b and 120b; sinks in every softmax, a sliding window in every second layer, biases everywhere.

Source: llama.cpp, models/openai-moe.cpp.
"""

import numpy as np

from moeengine.errors import GGUFError, UnsupportedError

PATTERN = 2  # one layer in so many sees all keys, where the file does not say
MAX_WINDOW = (1 << 31) - 1


def build(b):
    hp, key = b.hparams, f"{b.hparams.arch}."
    if not hp.n_rot == hp.head_dim_k == hp.head_dim_v:
        raise GGUFError(f"{b.file.files[0].path}: key {key}rope.dimension_count: found {hp.n_rot}, expected whole heads "
                        f"(keys of {hp.head_dim_k}, values of {hp.head_dim_v})")
    base = b.file.get_float(key + "rope.freq_base", 10000.0)
    if b.file.get_float(key + "rope.freq_base_swa", base) != base:
        raise UnsupportedError(f"{b.file.files[0].path}: key {key}rope.freq_base_swa: another base for the layers with a "
                               "sliding window is not supported")
    window = b.file.get_int(key + "attention.sliding_window", lo=1, hi=MAX_WINDOW)
    n_ff_exp = b.file.get_per_layer(key + "expert_feed_forward_length", hp.n_layer, lo=1)
    slides = sliding_layers(b.file, key + "attention.sliding_window_pattern", hp.n_layer)
    b.embed()
    for il in range(hp.n_layer):
        b.attention(il, neox=True, sinks=True, window=window if slides[il] else 0)
        b.moe(il, norm_topk=False, gating="softmax_topk", expert_scales=False, n_ff_exp=n_ff_exp[il],
              norm="post_attention_norm", activation="swiglu_oai")
        require_biases(b, il)
    b.head()


def sliding_layers(file, key, n_layer):
    """Which layers have a sliding window: a flag a layer from the file; or all but the last of every `key` layers,
    0 for all of them."""
    if isinstance(file.get(key, None), np.ndarray):
        flags = file.get_array(key)
        if flags.dtype.kind not in "biu" or len(flags) < n_layer:
            file.refuse(key, flags, f"{n_layer} flags, one a layer")
        return [bool(flag) for flag in flags[:n_layer]]
    every = file.get_int(key, PATTERN, lo=0)
    return [every == 0 or il % every < every - 1 for il in range(n_layer)]


def require_biases(b, il):
    """The biases that no model of this kind goes without: a file that lost them would only look as if it worked."""
    for name in ("attn_output", "ffn_gate_inp"):
        b.tensors.info(f"blk.{il}.{name}.bias")
    for bank in (bank for tier in b.banks[-1].tiers for bank in (tier.gate, tier.up, tier.down)):
        if bank.bias is None:
            b.tensors.info(bank.name.removesuffix(".weight") + ".bias")
