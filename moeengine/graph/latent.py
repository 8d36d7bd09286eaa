"""What architectures with latent attention (MLA) share: its shape as the file gives it, and the assembly of a layer."""

from __future__ import annotations

import math
from dataclasses import dataclass

from moeengine.errors import GGUFError
from moeengine.graph.hparams import KvLayer
from moeengine.graph.mla import LatentAttentionBlock

MAX_COUNT = 1 << 24
MAX_SCALE = 1e6  # of the scores; published models have less than 3


@dataclass(frozen=True)
class LatentShape:
    """Sizes in elements; what scales scores and queries."""

    n_lora_q: int  # of a query's latent; 0: queries come straight from the input
    n_lora: int  # of the latent of keys and values
    n_nope: int  # of a head's key, without the rotated part
    n_rot: int
    head_dim_v: int
    absorbed: bool  # the file has k_b and v_b, and the cache holds latents
    scale: float  # of the scores
    temperature_scale: float
    temperature_length: int
    with_rope: bool  # else the n_rot values are as the others
    neox: bool  # see AttentionBlock


def latent_shape(b, rope, *, layers=None, n_lora_q=None, scaled=True, neox=False):
    """LatentShape of a model file. GGUFError: a key is missing or out of range, or disagrees with another.

    rope : RopeConfig or None     nothing is rotated
    layers : list of int or None  those with latent attention, where not all have it: a hybrid, whose queries are whole, and
                                  whose files may have any value_length
    n_lora_q : int or None        rank of the queries, 0: they are whole; None: what the file says
    scaled : bool                 what YaRN multiplies attention with is in the scale of the scores
    """
    file, hp, key = b.file, b.hparams, f"{b.hparams.arch}.attention."
    n_lora = file.get_int(key + "kv_lora_rank", lo=1, hi=MAX_COUNT)
    # A file may carry the rank of its larger kin and have whole queries; the tensors decide.
    if n_lora_q is None:
        n_lora_q = 0 if layers is not None or b.tensors.has("blk.0.attn_q.weight") else file.get_int(key + "q_lora_rank", lo=1, hi=MAX_COUNT)
    dim_k, dim_v = (file.get_int(f"{key}{part}_length_mla", 0, lo=0, hi=MAX_COUNT) for part in ("key", "value"))
    absorbed = dim_k > 0
    if absorbed != (dim_v > 0):
        file.refuse(key + "value_length_mla", dim_v, f"one with {key}key_length_mla = {dim_k}, or neither")
    if absorbed and dim_k < 3:
        file.refuse(key + "key_length_mla", dim_k, "3 or more: a rotated pair and what is not rotated")
    dim_k, dim_v = dim_k or hp.head_dim_k, dim_v or hp.head_dim_v
    if not 2 <= hp.n_rot < dim_k:
        file.refuse(f"{hp.arch}.rope.dimension_count", hp.n_rot, f"2 to {dim_k - 1}: less than a key of {dim_k}")
    if absorbed:
        expected = {"key_length": (hp.head_dim_k, n_lora + hp.n_rot), "value_length": (hp.head_dim_v, n_lora)}
        for name, (found, wanted) in expected.items():
            if found != wanted and (layers is None or name != "value_length"):
                file.refuse(key + name, found, f"{wanted}, with {key}kv_lora_rank = {n_lora}")
    wanted = (1,) * hp.n_layer if absorbed else hp.n_head
    for il in range(hp.n_layer) if layers is None else layers:
        if hp.n_head_kv[il] != wanted[il]:
            file.refuse(key + "head_count_kv", hp.n_head_kv[il], f"{wanted[il]} (layer {il})")
    temperature = file.get_float(key + "temperature_scale", 0.0)
    length = file.get_int(key + "temperature_length", *(() if temperature else (1,)), lo=1 if temperature else 0, hi=1 << 32)
    scale = (score_scale(file, rope) if rope and scaled else 1) / math.sqrt(dim_k)
    return LatentShape(n_lora_q, n_lora, dim_k - hp.n_rot, hp.n_rot, dim_v, absorbed, scale, temperature, length or 1, rope is not None,
                       neox)


def score_scale(file, rope):
    """Factor of the scores beside 1 / sqrt(D): the square of YaRN's attention factor, with the file's log multiplier.

    Source: llama.cpp, models/deepseek2.cpp; the multiplier in a file is 0.1 mscale_all_dim.
    """
    key = f"{file.architecture}.rope.scaling.yarn_log_multiplier"
    stretched = -math.log(rope.freq_scale)
    factor = rope.attn_factor * (1 if rope.ext_factor else 1 + 0.1 * stretched)
    scale = factor * (1 + file.get_float(key, 0.0) * stretched)
    scale *= scale  # not ** 2, which raises where the square is infinite
    if not 1 / MAX_SCALE < scale < MAX_SCALE:
        raise GGUFError(f"{file.files[0].path}: key {key}: found {file.get_float(key, 0.0)}, with which scores are scaled by "
                        f"{scale}, expected {1 / MAX_SCALE} to {MAX_SCALE}")
    return scale


def attention(b, il, shape, indexers=None, gate=None, sinks=False):
    """Append the latent attention of layer `il`.

    indexers : graph.indexed_latent.Indexers or None    where tokens see chosen positions
    gate, sinks                                         see Builder.attention
    """
    hp, blk, s = b.hparams, f"blk.{il}.", shape
    E, H, L, n_q = hp.n_embd, hp.n_head[il], s.n_lora, hp.n_head[il] * (s.n_nope + s.n_rot)
    q_a_norm = q_b = k_b = v_b = kv_b = None
    if s.n_lora_q:
        q = b.matrix(blk + "attn_q_a.weight", s.n_lora_q, E)
        q_a_norm = b.tensors.vector(blk + "attn_q_a_norm.weight", s.n_lora_q)
        q_b = b.matrix(blk + "attn_q_b.weight", n_q, s.n_lora_q)
    else:
        q = b.matrix(blk + "attn_q.weight", n_q, E, with_scale=False)  # llama.cpp uses that of the output alone
    kv_a = b.matrix(blk + "attn_kv_a_mqa.weight", L + s.n_rot, E)
    if s.absorbed:
        k_b = b.matrices(blk + "attn_k_b.weight", H, L, s.n_nope)
        v_b = b.matrices(blk + "attn_v_b.weight", H, s.head_dim_v, L)
    else:
        kv_b = b.matrix(blk + "attn_kv_b.weight", H * (s.n_nope + s.head_dim_v), L)
    o = b.matrix(blk + "attn_output.weight", E, H * s.head_dim_v)
    gates = b.matrix(blk + "attn_gate.weight", {"values": H * s.head_dim_v, "heads": H}[gate], E) if gate else None
    block = LatentAttentionBlock(
        attn_norm=b.tensors.vector(blk + "attn_norm.weight", E), q=q, q_a_norm=q_a_norm, q_b=q_b, kv_a=kv_a,
        kv_a_norm=b.tensors.vector(blk + "attn_kv_a_norm.weight", L), k_b=k_b, v_b=v_b, kv_b=kv_b, o=o,
        n_head=H, n_nope=s.n_nope, n_rot=s.n_rot, head_dim_v=s.head_dim_v, eps=hp.eps, scale=s.scale,
        kv_offset=b.sizes.kv_elements, temperature_scale=s.temperature_scale, temperature_length=s.temperature_length,
        with_rope=s.with_rope, neox=s.neox, gate=gates,
        sinks=b.tensors.vector(blk + "attn_sinks.weight", H) if sinks else None, **(indexers.of_layer(il, s.n_lora_q) if indexers else {}),
    )
    b.blocks.append(block)
    b.normed(q, kv_a, *([gates] if gates is not None else []))
    _note_sizes(b.sizes, s, H, q_b, k_b, v_b, kv_b, o)
    b.sizes.largest(n_wide=block.n_wide)
    if indexers:
        indexers.note_sizes(il, block)


def _note_sizes(sizes, s, H, q_b, k_b, v_b, kv_b, o):
    """What the block needs of the buffers, and what it keeps a position."""
    row, dim_k, dim_v = s.n_lora + s.n_rot, s.n_nope + s.n_rot, s.head_dim_v
    sizes.largest(n_head=H, n_q=H * dim_k, n_attn=H * dim_v, n_k=s.n_lora_q)
    sizes.attn_rows.add((o.x_format, H * dim_v))
    if q_b is not None:
        sizes.attn_rows.add((q_b.x_format, s.n_lora_q))
    if s.absorbed:
        sizes.largest(head_dim_k=row, head_dim_v=s.n_lora, n_latent=row)
        sizes.latent_rows |= {(k_b.x_format, s.n_nope), (v_b.x_format, s.n_lora)}
        sizes.kv_layers.append(KvLayer(1, row, 0))
    else:
        sizes.largest(head_dim_k=dim_k, head_dim_v=dim_v, n_k=H * dim_k, n_v=H * dim_v)
        sizes.attn_rows.add((kv_b.x_format, s.n_lora))
        sizes.kv_layers.append(KvLayer(H, dim_k, dim_v))
