"""lfm2: LFM2 and LFM2.5 (350M to 2.6B); gated short convolutions in the layers that have no KV heads, attention in the others.

Source: llama.cpp, models/lfm2.cpp.
"""

from moeengine.graph.builder import MAX_WINDOW
from moeengine.graph.short_conv import MAX_TAPS, ShortConvBlock


def build(b):
    hp = b.hparams
    window = b.file.get_int(f"{hp.arch}.attention.sliding_window", 0, lo=0, hi=MAX_WINDOW)
    b.embed()
    for il in range(hp.n_layer):
        mix(b, il, window=window)
        b.ffn(il)
    b.head(norm="token_embd_norm")


def mix(b, il, *, window=0):
    """Attention of layer `il`, or the convolution in its place. window: keys a query sees, 0 for all."""
    if b.hparams.n_head_kv[il]:
        b.attention(il, neox=True, head_norm="head", window=window)
    else:
        short_conv(b, il)


def short_conv(b, il):
    blk, E = f"blk.{il}.shortconv.", b.hparams.n_embd
    n_taps = b.file.get_int(f"{b.hparams.arch}.shortconv.l_cache", lo=2, hi=MAX_TAPS)
    in_proj = b.matrix(blk + "in_proj.weight", 3 * E, E)
    out_proj = b.matrix(blk + "out_proj.weight", E, E)
    b.blocks.append(ShortConvBlock(
        attn_norm=b.tensors.vector(f"blk.{il}.attn_norm.weight", E), in_proj=in_proj,
        conv=b.taps(blk + "conv.weight", E, n_taps), out_proj=out_proj, n_taps=n_taps,
        eps=b.hparams.eps, state_offset=b.sizes.n_recurrent,
    ))  # fmt: skip
    b.normed(in_proj)
    b.sizes.largest(n_wide=3 * E, n_attn=E)
    b.sizes.attn_rows.add((out_proj.x_format, E))
    b.sizes.n_recurrent += (n_taps - 1) * E
