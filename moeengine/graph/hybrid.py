"""What hybrid architectures share: which layers are recurrent, and the assembly of a gated delta net."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from moeengine.errors import GGUFError
from moeengine.graph.causal_conv import MAX_TAPS
from moeengine.graph.delta_net import DeltaNetBlock

MAX_DIM = 1024  # of a head: its state has the square of it; published models have 128
USUAL_INTERVAL = 4  # every fourth layer is attention


@dataclass(frozen=True)
class DeltaShape:
    """Sizes of the gated delta nets of a model, in elements."""

    n_head_k: int  # of queries and keys
    n_head_v: int  # a multiple of n_head_k
    dim: int  # of every head
    n_taps: int  # of the convolution, the current token included

    @property
    def n_channels(self):
        return (2 * self.n_head_k + self.n_head_v) * self.dim

    @property
    def n_state(self):
        """float32 values a layer keeps between chunks."""
        return (self.n_taps - 1) * self.n_channels + self.n_head_v * self.dim * self.dim


def delta_shape(file):
    """DeltaShape from the `ssm.*` keys. GGUFError: one is missing or out of range, or they do not fit together."""
    arch = file.architecture
    n_head_v = file.get_int(f"{arch}.ssm.time_step_rank", lo=1, hi=1 << 16)
    n_head_k = file.get_int(f"{arch}.ssm.group_count", lo=1, hi=1 << 16)
    dim = file.get_int(f"{arch}.ssm.state_size", lo=1, hi=MAX_DIM)
    n_inner = file.get_int(f"{arch}.ssm.inner_size", lo=1)
    if n_head_v % n_head_k:
        raise GGUFError(f"{file.files[0].path}: key {arch}.ssm.group_count: found {n_head_k}, expected a divisor of "
                        f"{arch}.ssm.time_step_rank = {n_head_v}")
    if n_inner != n_head_v * dim:
        raise GGUFError(f"{file.files[0].path}: key {arch}.ssm.inner_size: found {n_inner}, expected {n_head_v * dim}: "
                        f"{arch}.ssm.time_step_rank times {arch}.ssm.state_size")
    return DeltaShape(n_head_k, n_head_v, dim, file.get_int(f"{arch}.ssm.conv_kernel", lo=1, hi=MAX_TAPS))


def recurrent_layers(file, n_layer):
    """bool a layer, tuple (n_layer,): whether it has a recurrent state in the place of keys and values."""
    arch = file.architecture
    key = f"{arch}.attention.recurrent_layers"
    flags = file.get(key, None)
    if isinstance(flags, bool):
        return (flags,) * n_layer
    if flags is not None:
        if not isinstance(flags, np.ndarray) or flags.dtype.kind not in "bui" or len(flags) < n_layer:
            raise GGUFError(f"{file.files[0].path}: key {key}: expected {n_layer} flags, one a layer")
        return tuple(bool(flag) for flag in flags[:n_layer])
    interval = file.get_int(f"{arch}.full_attention_interval", USUAL_INTERVAL, lo=1, hi=1 << 16)
    return tuple((il + 1) % interval != 0 for il in range(n_layer))


def mixer(b, *, by_group=False):
    """A function that appends the delta net or the gated attention of layer `il`, whichever the file gives it."""
    shape, recurrent = delta_shape(b.file), recurrent_layers(b.file, b.hparams.n_layer)

    def mix(il):
        if recurrent[il]:
            delta_net(b, il, shape, by_group=by_group)
        else:
            b.attention(il, neox=True, head_norm="head", with_gate=True)

    return mix


def delta_net(b, il, shape, *, by_group=False):
    """Append the gated delta net of layer `il`. by_group: see DeltaNetBlock; its gates are one tensor, `ssm_ba`."""
    blk, E, n_v = f"blk.{il}.", b.hparams.n_embd, shape.n_head_v
    C, n_inner = shape.n_channels, n_v * shape.dim
    qkv = b.matrix(blk + "attn_qkv.weight", C, E)
    z = b.matrix(blk + "attn_gate.weight", n_inner, E)
    names = [("ssm_ba", 2 * n_v)] if by_group else [("ssm_beta", n_v), ("ssm_alpha", n_v)]
    gates = [b.matrix(f"{blk}{name}.weight", n, E) for name, n in names]
    out = b.matrix(blk + "ssm_out.weight", E, n_inner)
    b.blocks.append(DeltaNetBlock(
        attn_norm=b.tensors.vector(blk + "attn_norm.weight", E), qkv=qkv, z=z, gates=gates,
        conv=b.taps(blk + "ssm_conv1d.weight", C, shape.n_taps),
        dt_bias=b.tensors.vector(blk + "ssm_dt.bias", n_v), a=b.tensors.vector(blk + "ssm_a", n_v),
        norm=b.tensors.vector(blk + "ssm_norm.weight", shape.dim), out=out,
        n_head_k=shape.n_head_k, n_head_v=n_v, dim=shape.dim, n_taps=shape.n_taps, by_group=by_group,
        eps=b.hparams.eps, state_offset=b.sizes.n_recurrent,
    ))
    b.normed(qkv, z, *gates)
    b.sizes.largest(n_q=C, n_attn=n_inner, n_v=n_inner, n_k=2 * n_v, n_wide=C + 2 * n_v)
    b.sizes.attn_rows.add((out.x_format, n_inner))
    b.sizes.n_recurrent += shape.n_state
    b.sizes.weights_per_token += 3 * n_inner * shape.dim  # the state is gone through as often as a weight is multiplied
