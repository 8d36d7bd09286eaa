"""hy_v4: Hunyuan 4; latent attention with sinks and a gate for every value, to positions that an indexer chooses in most files, and
four residual streams that know of each other only through what the blocks read.

Source: llama.cpp, models/hy-v4.cpp.
"""

from moeengine.graph import latent
from moeengine.graph.compressed import HyperConnections
from moeengine.graph.hparams import bounds_per_layer
from moeengine.graph.indexed_latent import Indexers, types_of


def build(b):
    hp, file, key = b.hparams, b.file, f"{b.hparams.arch}."
    b.tensors.leave_out("scale", "")
    streams = HyperConnections(b, independent=True)
    shape = latent.latent_shape(b, b.embed(), scaled=False, n_lora_q=file.get_int(key + "attention.q_lora_rank", lo=1, hi=latent.MAX_COUNT))
    if not shape.absorbed:
        file.refuse(key + "attention.key_length_mla", 0, "that of files with absorbed up-projections")
    indexers = indexers_of(b)
    n_ff_exp = file.get_per_layer(key + "expert_feed_forward_length", hp.n_layer, lo=1)
    n_shared = file.get_int(key + "expert_shared_count", lo=1, hi=1 << 16)
    bounds = bounds_per_layer(b, key + "swiglu_clamp_exp", [0.0] * hp.n_layer)
    streams.start([])
    for il in range(hp.n_layer):

        def network():
            if il < hp.n_layer_dense_lead:
                b.ffn(il)
            else:
                b.moe(il, norm_topk=hp.expert_weights_norm, gating=None, n_ff_exp=n_ff_exp[il], n_ff_shexp=n_shared * n_ff_exp[il],
                      activation="swiglu_clamp", bound=bounds[il])

        streams.around(f"blk.{il}.hc_attn", lambda: latent.attention(b, il, shape, indexers, gate="values", sinks=True))
        streams.around(f"blk.{il}.hc_ffn", network)
    streams.head()
    b.tensors.info("output.weight")
    b.head()


def indexers_of(b):
    """Indexers, or None: a file without attention.indexer.top_k has tokens see all positions."""
    hp, key = b.hparams, f"{b.hparams.arch}.attention.indexer."
    if not b.file.get_int(key + "top_k", 0, lo=0, hi=1 << 24):
        return None
    layers = types_of(b)
    if layers is None:
        b.file.get_array(key + "types")
    indexers = Indexers(b, eps=hp.eps, neox=False, rotated_last=True, hadamard=False, layers=layers)
    if indexers.dim == hp.n_rot:
        b.file.refuse(key + "key_length", indexers.dim, f"more than {hp.arch}.rope.dimension_count = {hp.n_rot}")
    return indexers
