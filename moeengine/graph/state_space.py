"""What architectures with Mamba-2 layers share: the layers' sizes, and their assembly."""

from __future__ import annotations

from dataclasses import dataclass

from moeengine.errors import GGUFError
from moeengine.graph.causal_conv import MAX_TAPS
from moeengine.graph.mamba2 import Mamba2Block

MAX_DIM = 1024  # of a row of a head's state; published models have 128
MAX_HEADS = 1 << 16


@dataclass(frozen=True)
class MambaShape:
    """Sizes of the Mamba-2 layers of a model, in elements."""

    n_head: int
    head_dim: int
    n_group: int  # of heads that share B and C; a divisor of n_head
    dim: int  # of B and C, and of a row of the state
    n_taps: int  # of the convolution, the current token included

    @property
    def n_inner(self):
        return self.n_head * self.head_dim

    @property
    def n_channels(self):
        """Rows of the projection that are convolved: x, B and C."""
        return self.n_inner + 2 * self.n_group * self.dim

    @property
    def n_state(self):
        """float32 values a layer keeps between chunks."""
        return (self.n_taps - 1) * self.n_channels + self.n_inner * self.dim


def mamba_shape(file):
    """MambaShape from the `ssm.*` keys. GGUFError: one is missing or out of range, or they do not fit together."""
    arch = file.architecture
    n_head = file.get_int(f"{arch}.ssm.time_step_rank", lo=1, hi=MAX_HEADS)
    n_group = file.get_int(f"{arch}.ssm.group_count", lo=1, hi=MAX_HEADS)
    n_inner = file.get_int(f"{arch}.ssm.inner_size", lo=1, hi=1 << 24)
    for key, found, whole, of in (("group_count", n_group, n_head, "time_step_rank"), ("time_step_rank", n_head, n_inner, "inner_size")):
        if whole % found:
            raise GGUFError(f"{file.files[0].path}: key {arch}.ssm.{key}: found {found}, expected a divisor of "
                            f"{arch}.ssm.{of} = {whole}")
    return MambaShape(n_head, n_inner // n_head, n_group, file.get_int(f"{arch}.ssm.state_size", lo=1, hi=MAX_DIM),
                      file.get_int(f"{arch}.ssm.conv_kernel", lo=1, hi=MAX_TAPS))


def mamba2(b, il, shape, *, residual_scale=1.0):
    """Append the Mamba-2 layer `il`."""
    blk, E, H, n_inner, C = f"blk.{il}.", b.hparams.n_embd, shape.n_head, shape.n_inner, shape.n_channels
    whole = b.matrix(blk + "ssm_in.weight", n_inner + C + H, E)
    projections = [whole.rows(first, n) for first, n in ((0, n_inner), (n_inner, C), (n_inner + C, H))]
    out = b.matrix(blk + "ssm_out.weight", E, n_inner)
    b.blocks.append(Mamba2Block(
        block_norm=b.tensors.vector(blk + "attn_norm.weight", E), projections=projections,
        conv=b.taps(blk + "ssm_conv1d.weight", C, shape.n_taps),
        conv_bias=b.tensors.vector(blk + "ssm_conv1d.bias", C, optional=True),
        dt_bias=b.tensors.vector(blk + "ssm_dt.bias", H), a=b.tensors.vector(blk + "ssm_a", H),
        skip=b.tensors.vector(blk + "ssm_d", H), norm=b.tensors.vector(blk + "ssm_norm.weight", n_inner), out=out,
        n_head=H, head_dim=shape.head_dim, n_group=shape.n_group, dim=shape.dim, n_taps=shape.n_taps, eps=b.hparams.eps,
        residual_scale=residual_scale, state_offset=b.sizes.n_recurrent,
    ))
    b.normed(whole)
    b.sizes.largest(n_q=C, n_attn=n_inner, n_v=n_inner, n_k=H, n_wide=C + 2 * H)
    b.sizes.attn_rows.add((out.x_format, n_inner))
    b.sizes.n_recurrent += shape.n_state
    b.sizes.weights_per_token += 2 * n_inner * shape.dim  # the state is gone through as often as a weight is multiplied
