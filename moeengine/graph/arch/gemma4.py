"""gemma4: Gemma-4 26B-A4B, and 31B without experts; layers with a sliding window have heads and rope of their own, a dense
network runs beside the experts, each with norms around it, and the router reads a third norm.

Source: llama.cpp, models/gemma4.cpp.
"""

import math

import numpy as np

from moeengine.errors import GGUFError, UnsupportedError
from moeengine.graph.hparams import MAX_COUNT
from moeengine.graph.rope import window_rope
from moeengine.graph.weights import Vector


def build(b):
    hp, file, key = b.hparams, b.file, f"{b.hparams.arch}."
    b.tensors.apply_scales()
    refuse_per_layer_embeddings(file, key)
    window_dim = [file.get_int(f"{key}attention.{part}_length_swa", whole, lo=1, hi=MAX_COUNT)
                  for part, whole in (("key", hp.head_dim_k), ("value", hp.head_dim_v))]
    if window_dim[0] != window_dim[1]:
        raise GGUFError(f"{file.files[0].path}: key {key}attention.value_length_swa: found {window_dim[1]}, expected "
                        f"{window_dim[0]} as {key}attention.key_length_swa")
    windows = b.windows(every=None)
    n_rot = file.get_int(key + "rope.dimension_count_swa", hp.n_rot, lo=0, hi=window_dim[0])
    if not all(windows):
        b.tensors.info("rope_freqs.weight")  # which pairs of a whole head are rotated
    b.embed(scale=math.sqrt(hp.n_embd), window_rope=window_rope(file, hp, n_rot=n_rot, default_base=10000.0, scaled=False))
    for il in range(hp.n_layer):
        b.attention(il, neox=True, head_norm="head", scale=1.0, window=windows[il], optional_values=True, norm_values=True,
                    head_dim=window_dim if windows[il] else None, post_norm="post_attention_norm")
        after = b.tensors.vector(f"blk.{il}.layer_output_scale.weight", 1, optional=True)
        ends = dict(post_norm="post_ffw_norm", after=float(after.array()[0]) if after is not None else 1.0)
        if b.tensors.has(f"blk.{il}.ffn_gate_inp.weight"):
            experts(b, il, ends)
        else:
            b.ffn(il, activation="gelu", **ends)
    b.head(softcap=file.get_float(key + "final_logit_softcapping", 30.0, lo=0, hi=1e30))


def experts(b, il, ends):
    """Routed experts beside the dense network, which is a shared expert with norms of its own."""
    hp, blk = b.hparams, f"blk.{il}."
    norms = {part: b.tensors.vector(f"{blk}{name}.weight", hp.n_embd) for part, name in (
        ("shared_norm", "ffn_norm"), ("shared_post_norm", "post_ffw_norm_1"), ("expert_post_norm", "post_ffw_norm_2"),
    )}  # fmt: skip
    router = b.tensors.vector(blk + "ffn_gate_inp.scale", hp.n_embd)
    router = Vector(router.array() * np.float32(1 / math.sqrt(hp.n_embd)), router.name)
    b.moe(il, norm_topk=True, gating="softmax", n_ff_exp=hp.n_ff_exp[il] or None, n_ff_shexp=hp.n_ff[il], shared="",
          norm="pre_ffw_norm_2", router_norm=router, activation="gelu", shared_activation="gelu", weights_scale=1.0,
          **norms, **ends)


def refuse_per_layer_embeddings(file, key):
    """UnsupportedError for Gemma-4 E2B and E4B."""
    for name, what in (("embedding_length_per_layer_input", "embeddings of every layer"),
                       ("attention.shared_kv_layers", "layers that share keys and values")):
        if file.get_int(key + name, 0, lo=0):
            raise UnsupportedError(f"{file.files[0].path}: key {key}{name}: {what} (Gemma-4 E2B, E4B) are not supported")
