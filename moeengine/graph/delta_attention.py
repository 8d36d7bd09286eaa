"""The assembly of a layer of Kimi delta attention, and its sizes as the file gives them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from moeengine.graph.causal_conv import MAX_TAPS
from moeengine.graph.kda import KdaBlock
from moeengine.graph.weights import Vector

MAX_DIM = 1024  # of a head: its state has the square of it; published models have 128


@dataclass(frozen=True)
class KdaShape:
    """Sizes in elements."""

    dim: int  # of a head
    n_taps: int  # of the convolutions, the current token included
    narrow: bool = True  # rates and gates come through layers of `dim` values
    least_log: float = 0.0  # see KdaBlock


def kda_shape(file):
    """KdaShape of a model file. GGUFError: a key is missing or out of range."""
    arch = file.architecture
    return KdaShape(file.get_int(f"{arch}.kda.head_dim", lo=1, hi=MAX_DIM), file.get_int(f"{arch}.ssm.conv_kernel", lo=1, hi=MAX_TAPS))


def kda(b, il, shape):
    """Append the Kimi delta attention of layer `il`."""
    blk, E, dim, taps = f"blk.{il}.", b.hparams.n_embd, shape.dim, shape.n_taps
    H = b.hparams.n_head[il] or next(filter(None, b.hparams.n_head))  # files may say that it has no heads of attention
    n, options = H * dim, dict(with_scale=False, with_bias=False)  # llama.cpp uses neither
    if b.tensors.has(blk + "attn_qkv.weight"):
        whole = b.matrix(blk + "attn_qkv.weight", 3 * n, E, **options)
        projections = [whole.rows(i * n, n) for i in range(3)]
    else:
        projections = [b.matrix(f"{blk}attn_{part}.weight", n, E, **options) for part in "qkv"]
    low = dim if shape.narrow else n
    projections += [b.matrix(f"{blk}{name}.weight", rows, E, **options)
                    for name, rows in (("ssm_f_a", low), ("ssm_g_a", low), ("ssm_beta", H))]
    rates = gates = None
    if shape.narrow:
        rates, gates = (b.matrix(f"{blk}{name}.weight", n, dim) for name in ("ssm_f_b", "ssm_g_b"))
    out = b.matrix(blk + "attn_output.weight", E, n, **options)
    b.blocks.append(KdaBlock(
        attn_norm=b.tensors.vector(blk + "attn_norm.weight", E), projections=projections, rates=rates, gates=gates,
        conv=[_taps(b, f"{blk}ssm_conv1d_{part}.weight", n, taps) for part in "qkv"],
        dt_bias=b.tensors.vector(blk + "ssm_dt.bias", n), a=b.tensors.vector(blk + "ssm_a", H),
        norm=b.tensors.vector(blk + "ssm_norm.weight", dim), out=out, n_head=H, dim=dim, n_taps=taps, eps=b.hparams.eps,
        state_offset=b.sizes.n_recurrent, least_log=shape.least_log,
    ))
    b.normed(*projections)
    b.sizes.largest(n_q=3 * n, n_attn=n, n_k=2 * dim + H, n_v=2 * n, n_wide=4 * n + H)
    b.sizes.attn_rows |= {(out.x_format, n), *((w.x_format, dim) for w in (rates, gates) if w is not None)}
    b.sizes.n_recurrent += 3 * (taps - 1) * n + n * dim
    b.sizes.weights_per_token += 3 * n * dim  # the state is gone through as often as a weight is multiplied


def _taps(b, name, n, n_taps):
    """Vector (n_taps, n) of a convolution, whose tensor has axes of length 1 between n and n_taps, or around them."""
    info = b.tensors.info(name)
    if info.shape[-1] != n_taps or np.prod(info.shape) != n * n_taps:
        b.tensors.info(name, (n, 1, n_taps))
    taps = b.tensors.vector(name, None).array().reshape(n, n_taps)
    return Vector(np.ascontiguousarray(taps.T), name)
