"""deepseek4: DeepSeek-V4 (Flash); four residual streams, compressed keys beside a window, experts by token in the first layers.

Next-token-prediction layers and the routing bias of images are left out.

Source: llama.cpp, models/deepseek4.cpp.
"""

from moeengine.errors import GGUFError, UnsupportedError
from moeengine.graph.compressed import CompressedLayers, HyperConnections
from moeengine.graph.hparams import bounds_per_layer


def build(b):
    hp, key = b.hparams, f"{b.hparams.arch}."
    check(b)
    n_by_token = b.file.get_int(key + "hash_layer_count", lo=0, hi=1 << 16)
    bounds = bounds_per_layer(b, key + "swiglu_clamp_exp")
    shared_bounds = bounds_per_layer(b, key + "swiglu_clamp_shexp", bounds)
    layers, streams = CompressedLayers(b), HyperConnections(b)
    b.embed(with_rope=False)
    streams.start(layers.ropes)
    for il in range(hp.n_layer):

        def experts():
            b.moe(il, norm_topk=hp.expert_weights_norm, gating=hp.expert_gating, n_ff_exp=hp.n_ff_exp[il] or None,
                  n_ff_shexp=hp.n_expert_shared * hp.n_ff_exp[il], by_token=il < n_by_token,
                  activation="swiglu_clamp", bound=bounds[il], shared_activation="swiglu_clamp",
                  shared_bound=shared_bounds[il])

        if il >= n_by_token:
            b.tensors.info(f"blk.{il}.exp_probs_b.bias")
        streams.around(f"blk.{il}.hc_attn", lambda: layers.attention(il))
        streams.around(f"blk.{il}.hc_ffn", experts)
    streams.head()
    b.head()


def check(b):
    """What llama.cpp insists on too."""
    hp, path, file = b.hparams, b.file.files[0].path, b.file
    if hp.expert_gating != "sqrt_softplus":
        raise UnsupportedError(f"{path}: key {hp.arch}.expert_gating_func: found {hp.expert_gating}, expected 4 (sqrt_softplus)")
    for name in ("expert_shared_count", "expert_feed_forward_length"):
        file.get(f"{hp.arch}.{name}")
    n_nextn = file.get_int(f"{hp.arch}.nextn_predict_layers", 0, lo=0)
    if n_nextn and not b.tensors.has(f"blk.{hp.n_layer}.nextn.eh_proj.weight"):
        raise GGUFError(f"{path}: tensor blk.{hp.n_layer}.nextn.eh_proj.weight: missing; the key "
                        f"{hp.arch}.nextn_predict_layers = {n_nextn} says that layer {hp.n_layer} predicts tokens after the next")
