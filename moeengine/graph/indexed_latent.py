"""Latent attention to chosen positions (DSA): the indexer's keys of a file, and its part of a layer. graph.latent does the rest."""

from __future__ import annotations

from moeengine.errors import GGUFError
from moeengine.graph.hparams import KvLayer
from moeengine.loader.indexed_kv import indexed_layers

MAX_COUNT = 1 << 16
LEAST_TURNED = 64  # values of a key that a Walsh-Hadamard matrix turns are a multiple of this


class Indexers:
    """The indexers of a model, for latent.attention. GGUFError: a key is missing or out of range.

    b : Builder
    eps : float                   of the norm of keys
    neox : bool                   pairs of the rotation, see AttentionBlock
    rotated_last : bool           the rotated values of a head are its last ones, else its first
    hadamard : bool               queries and keys are turned
    layers : list of bool         layers with an indexer of their own; None: all
    """

    def __init__(self, b, *, eps, neox, rotated_last=False, hadamard=True, layers=None):
        self.b, hp, key = b, b.hparams, f"{b.hparams.arch}.attention.indexer."
        self.layers = [True] * hp.n_layer if layers is None else layers
        self.n_head = b.file.get_int(key + "head_count", lo=1, hi=MAX_COUNT)
        self.dim = b.file.get_int(key + "key_length", lo=1, hi=MAX_COUNT)
        self.top_k = b.file.get_int(key + "top_k", lo=1, hi=1 << 24)
        if self.dim < hp.n_rot or hadamard and self.dim % LEAST_TURNED:
            of = f"a multiple of {LEAST_TURNED}, " if hadamard else ""
            b.file.refuse(key + "key_length", self.dim, f"{of}{hp.arch}.rope.dimension_count = {hp.n_rot} or more")
        if not self.layers[0]:
            b.file.refuse(key + "types", False, "layer 0 with an indexer of its own: no layer is before it")
        self.settings = {"eps": eps, "neox": neox, "n_rot": hp.n_rot, "rot_at": self.dim - hp.n_rot if rotated_last else 0,
                         "hadamard": hadamard}  # fmt: skip

    def of_layer(self, il, n_lora_q):
        """Arguments of LatentAttentionBlock: of the queries' latents of n_lora_q values."""
        if not self.layers[il]:
            return {"top_k": self.top_k}
        b, blk, E = self.b, f"blk.{il}.indexer.", self.b.hparams.n_embd
        if not n_lora_q:
            raise GGUFError(f"{b.tensors.where(f'blk.{il}.attn_q.weight')}: found whole queries, expected attn_q_a and attn_q_b: "
                            "the indexer's queries are made of the latents between them")
        k, proj = b.matrix(blk + "attn_k.weight", self.dim, E), b.matrix(blk + "proj.weight", self.n_head, E)
        b.normed(k, proj)
        return {"top_k": self.top_k, "index": self.settings | {
            "k": k, "proj": proj, "q": b.matrix(blk + "attn_q_b.weight", self.n_head * self.dim, n_lora_q),
            "k_norm": b.tensors.vector(blk + "k_norm.weight", self.dim), "k_bias": b.tensors.vector(blk + "k_norm.bias", self.dim),
        }}  # fmt: skip

    def note_sizes(self, il, block):
        """What the layer's choice needs of the buffers, and what it keeps a position."""
        sizes = self.b.sizes
        sizes.extra.append(block.extra_bytes)
        if self.layers[il]:
            sizes.kv_layers.append(KvLayer(1, 0, self.dim))


def types_of(b):
    """Which layers have an indexer of their own, as the file's key `attention.indexer.types` says; None: it does not say."""
    return indexed_layers(b.file, b.hparams.n_layer)
