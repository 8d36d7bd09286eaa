"""deepseek4: DeepSeek-V4 (Flash); four residual streams, compressed keys beside a window, experts by token in the first layers.

Next-token-prediction layers and the routing bias of images are left out.

Source: llama.cpp, models/deepseek4.cpp.
"""

from moeengine.errors import GGUFError, UnsupportedError
from moeengine.graph.compressed import CompressedLayers, HyperConnections

LEAST_BOUND = 1e-6  # of gate and up; a smaller one is none


def build(b):
    hp, key = b.hparams, f"{b.hparams.arch}."
    check(b)
    n_by_token = b.file.get_int(key + "hash_layer_count", lo=0, hi=1 << 16)
    bounds = per_layer(b, key + "swiglu_clamp_exp")
    shared_bounds = per_layer(b, key + "swiglu_clamp_shexp", bounds)
    layers, streams = CompressedLayers(b), HyperConnections(b)
    b.embed(with_rope=False)
    streams.start(layers.ropes)
    for il in range(hp.n_layer):
        bound, shared_bound = (value if value > LEAST_BOUND else 0.0 for value in (bounds[il], shared_bounds[il]))

        def experts():
            b.moe(il, norm_topk=hp.expert_weights_norm, gating=hp.expert_gating, n_ff_exp=hp.n_ff_exp[il] or None,
                  n_ff_shexp=hp.n_expert_shared * hp.n_ff_exp[il], by_token=il < n_by_token,
                  activation="swiglu_clamp", bound=bound, shared_activation="swiglu_clamp", shared_bound=shared_bound)

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


def per_layer(b, key, default=None):
    """Numbers of a key, one for all layers or one each: list. default: where the file has none."""
    file, n_layer = b.file, b.hparams.n_layer
    if default is not None and key not in file.metadata:
        return default
    value = file.get(key)
    if not hasattr(value, "dtype"):
        return [file.get_float(key, lo=0.0)] * n_layer
    values = file.get_array(key, kind="float").tolist()
    if len(values) < n_layer or not all(0 <= value < float("inf") for value in values):
        file.refuse(key, value, f"{n_layer} numbers, one a layer, 0 or more")
    return values
