"""What architectures with Mamba-1 layers share: the layers' sizes, and their assembly."""

from __future__ import annotations

from dataclasses import dataclass

from moeengine.graph.causal_conv import MAX_TAPS
from moeengine.graph.hparams import MAX_COUNT
from moeengine.graph.mamba import MambaBlock
from moeengine.graph.state_space import MAX_DIM


@dataclass(frozen=True)
class SelectiveShape:
    """Sizes of the Mamba-1 layers of a model, in elements."""

    n_inner: int  # channels
    dim: int  # values of a channel's state
    n_rank: int  # of the time step before its projection
    n_taps: int  # of the convolution, the current token included

    @property
    def n_state(self):
        """float32 values a layer keeps between chunks."""
        return (self.n_taps - 1 + self.dim) * self.n_inner


def selective_shape(file):
    """SelectiveShape from the `ssm.*` keys. GGUFError: one is missing or out of range."""
    key = f"{file.architecture}.ssm."
    return SelectiveShape(file.get_int(key + "inner_size", lo=1, hi=MAX_COUNT), file.get_int(key + "state_size", lo=1, hi=MAX_DIM),
                          file.get_int(key + "time_step_rank", lo=1, hi=MAX_COUNT), file.get_int(key + "conv_kernel", lo=1, hi=MAX_TAPS))


def mamba(b, il, shape):
    """Append the Mamba-1 layer `il`."""
    blk, E, n_inner, dim, rank = f"blk.{il}.", b.hparams.n_embd, shape.n_inner, shape.dim, shape.n_rank
    whole = b.matrix(blk + "ssm_in.weight", 2 * n_inner, E)
    x_proj = b.matrix(blk + "ssm_x.weight", rank + 2 * dim, n_inner, with_scale=False, with_bias=False)
    dt_proj = b.matrix(blk + "ssm_dt.weight", n_inner, rank, with_scale=False, with_bias=False)
    dt_proj.set_bias(b.tensors.vector(blk + "ssm_dt.bias", n_inner))
    out = b.matrix(blk + "ssm_out.weight", E, n_inner)
    b.blocks.append(MambaBlock(
        block_norm=b.tensors.vector(blk + "attn_norm.weight", E), projections=[whole.rows(0, n_inner), whole.rows(n_inner, n_inner)],
        conv=b.taps(blk + "ssm_conv1d.weight", n_inner, shape.n_taps), conv_bias=b.tensors.vector(blk + "ssm_conv1d.bias", n_inner),
        x_proj=x_proj, dt_norm=b.tensors.vector(blk + "ssm_dt_norm.weight", rank),
        b_norm=b.tensors.vector(blk + "ssm_b_norm.weight", dim), c_norm=b.tensors.vector(blk + "ssm_c_norm.weight", dim),
        dt_proj=dt_proj, a=b.taps(blk + "ssm_a", n_inner, dim), skip=b.tensors.vector(blk + "ssm_d", n_inner), out=out,
        n_taps=shape.n_taps, eps=b.hparams.eps, state_offset=b.sizes.n_recurrent,
    ))  # fmt: skip
    b.normed(whole)
    b.sizes.largest(n_q=n_inner, n_v=n_inner, n_k=rank + 2 * dim, n_wide=n_inner)
    b.sizes.attn_rows |= {(w.x_format, w.n_in) for w in (x_proj, dt_proj, out)}
    b.sizes.n_recurrent += shape.n_state
    b.sizes.weights_per_token += 2 * n_inner * dim  # the state is gone through as often as a weight is multiplied
