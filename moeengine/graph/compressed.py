"""Assembly of attention over compressed keys and of hyper-connections: what the architecture file of DeepSeek-V4 is made of."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from moeengine.errors import GGUFError, UnsupportedError
from moeengine.graph.compressed_attention import MAX_GROUPS, CompressedAttentionBlock
from moeengine.graph.hparams import KvLayer
from moeengine.graph.hyper_connections import (
    N_STREAMS,
    HyperHeadBlock,
    HyperJoinBlock,
    HyperSplitBlock,
    HyperStartBlock,
)
from moeengine.graph.rope import rope_config
from moeengine.loader.compressed_kv import compressed_layers

f32 = np.float32
MAX_ITERATIONS = 1 << 10  # of Sinkhorn's; published models have 20
LEAST_INDEXER_DIM = 64
MAX_MAGNITUDE = 1e6  # of what streams take; published models have 2


class HyperConnections:
    """Appends what stands around the blocks of a model with several residual streams. GGUFError: a key out of range.

    independent : bool     the streams are not mixed with each other
    """

    def __init__(self, b, *, independent=False):
        key = f"{b.hparams.arch}.hyper_connection."
        n_streams = b.file.get_int(key + "count", lo=1, hi=1 << 16)
        if n_streams != N_STREAMS:
            raise UnsupportedError(f"{b.file.files[0].path}: key {key}count: {n_streams} streams are not supported; supported: {N_STREAMS}")
        self.b, self.n_streams, self.independent = b, n_streams, independent
        self.settings = {"eps": b.hparams.eps, "mix_eps": b.file.get_float(key + "epsilon", lo=0.0, hi=1.0)}
        if independent:
            self.settings |= {"magnitude": b.file.get_float(key + "magnitude", lo=0.0, hi=MAX_MAGNITUDE), "post_eps": self.settings["mix_eps"]}
        else:
            self.settings["n_iterations"] = b.file.get_int(key + "sinkhorn_iterations", lo=1, hi=MAX_ITERATIONS)
        b.sizes.n_streams = n_streams

    def start(self, ropes):
        """After the embedding: the streams, and the angles of every position for each of `ropes`."""
        b = self.b
        b.blocks.append(HyperStartBlock(n_embd=b.hparams.n_embd, ropes=ropes))
        b.sizes.largest(n_rot=2 * len(ropes) * b.hparams.n_rot)

    def around(self, name, append):
        """The blocks that `append` appends, between a mix of the streams and the way back. name: of the mix's tensors."""
        n_parts = 2 if self.independent else 3
        self._mix(HyperSplitBlock, name, (2 if self.independent else 2 + self.n_streams) * self.n_streams, n_parts)
        append()
        self.b.blocks.append(HyperJoinBlock(n_embd=self.b.hparams.n_embd, independent=self.independent))

    def head(self):
        """Before the output norm: one mix."""
        self._mix(HyperHeadBlock, "output_hc", self.n_streams, 1)

    def _mix(self, kind, name, n, n_scale):
        b = self.b
        fn = b.matrix(f"{name}_fn.weight", n, self.n_streams * b.hparams.n_embd, with_bias=False, with_scale=False)
        block = kind(fn=fn, scale=b.tensors.vector(f"{name}_scale.weight", n_scale),
                     base=b.tensors.vector(f"{name}_base.weight", n), **self.settings)  # fmt: skip
        b.blocks.append(block)
        b.sizes.largest(n_wide=block.n_wide)


def two_ropes(b):
    """RopeConfigs of layers without and with compressed keys. Only the latter are stretched to a longer context, and their
    angles alone: what a length multiplies attention with otherwise is taken out, as llama.cpp does."""
    hp = b.hparams
    settings = dict(n_rot=hp.n_rot, n_ctx_train=hp.n_ctx_train)
    plain = dataclasses.replace(rope_config(b.file, **settings), freq_scale=1.0, ext_factor=0.0, attn_factor=1.0)
    far = rope_config(b.file, base_key="attention.compress_rope_freq_base", **settings)
    attn_factor = f32(1)
    if far.ext_factor:
        longer = f32(0.1) * f32(math.log(f32(1) / f32(far.freq_scale)))
        attn_factor = f32(1) / (f32(1) + longer) * (f32(1) + longer)
    return [plain, dataclasses.replace(far, attn_factor=float(attn_factor))]


class CompressedLayers:
    """Appends the attention of layer after layer. GGUFError: a key is missing or out of range, or they do not fit together."""

    def __init__(self, b):
        self.b, hp, arch = b, b.hparams, b.hparams.arch
        self.path = b.file.files[0].path

        def count(key, hi=1 << 16):
            return b.file.get_int(f"{arch}.attention.{key}", lo=1, hi=hi)

        self.shapes = compressed_layers(b.file, hp.n_layer)
        self.rank, self.o_rank, self.n_groups = count("q_lora_rank"), count("output_lora_rank"), count("output_group_count")
        self.n_index, self.top_k = count("indexer.head_count"), count("indexer.top_k", hi=1 << 24)
        self._check(hp, arch)
        b.file.get_float(f"{arch}.attention.compress_rope_freq_base")  # no default would be right
        self.ropes = two_ropes(b)

    def _check(self, hp, arch):
        for key, found, expected in (
            ("attention.value_length", hp.head_dim_v, hp.head_dim_k),
            *(("attention.head_count_kv", n, 1) for n in set(hp.n_head_kv)),
            *(("attention.head_count", n, hp.n_head[0]) for n in set(hp.n_head)),
        ):
            if found != expected:
                raise GGUFError(f"{self.path}: key {arch}.{key}: found {found}, expected {expected}")
        if not 2 <= hp.n_rot:
            raise GGUFError(f"{self.path}: key {arch}.rope.dimension_count: found {hp.n_rot}, expected 2 or more")
        if self.n_groups > MAX_GROUPS or hp.n_head[0] % self.n_groups:
            raise GGUFError(f"{self.path}: key {arch}.attention.output_group_count: found {self.n_groups}, expected a divisor of "
                            f"{arch}.attention.head_count = {hp.n_head[0]}, at most {MAX_GROUPS}")
        dim = self.shapes[0].indexer_dim
        if dim % LEAST_INDEXER_DIM or dim < hp.n_rot:
            raise GGUFError(f"{self.path}: key {arch}.attention.indexer.key_length: found {dim}, expected a multiple of "
                            f"{LEAST_INDEXER_DIM}, {arch}.rope.dimension_count = {hp.n_rot} or more")

    def attention(self, il):
        """The attention of layer `il`, whose result is left for a HyperJoinBlock."""
        b, hp, shape, blk = self.b, self.b.hparams, self.shapes[il], f"blk.{il}."
        E, H, D = hp.n_embd, hp.n_head[il], hp.head_dim_k
        q_a = b.matrix(blk + "attn_q_a.weight", self.rank, E)
        kv = b.matrix(blk + "attn_kv.weight", D, E)
        parts = {}
        if shape.ratio:
            parts["keys"] = self._compressor(blk + "attn_compressor", shape, D)
        if shape.ratio == 4:
            parts |= {
                "index_keys": self._compressor(blk + "indexer_compressor", shape, shape.indexer_dim),
                "index_proj": b.matrix(blk + "indexer.proj.weight", self.n_index, E),
                "index_q": b.matrix(blk + "indexer.attn_q_b.weight", self.n_index * shape.indexer_dim, self.rank),
                "top_k": self.top_k,
            }
        table = 1 if shape.ratio else 0
        block = CompressedAttentionBlock(
            shape=shape, attn_norm=b.tensors.vector(blk + "attn_norm.weight", E),
            q_a=q_a, q_a_norm=b.tensors.vector(blk + "attn_q_a_norm.weight", self.rank),
            q_b=b.matrix(blk + "attn_q_b.weight", H * D, self.rank),
            kv=kv, kv_norm=b.tensors.vector(blk + "attn_kv_a_norm.weight", D),
            sinks=b.tensors.vector(blk + "attn_sinks.weight", H),
            o_a=self._grouped(blk + "attn_output_a.weight", H * D // self.n_groups),
            o_b=b.matrix(blk + "attn_output_b.weight", E, self.n_groups * self.o_rank),
            n_head=H, n_groups=self.n_groups, n_rot=hp.n_rot, eps=hp.eps, table=table, rope=self.ropes[table],
            state_offset=b.sizes.n_recurrent, kv_offset=b.sizes.kv_elements, **parts,
        )  # fmt: skip
        b.blocks.append(block)
        first = [q_a, kv, *parts.get("keys", ())[:2], *parts.get("index_keys", ())[:2]]
        b.normed(*first, *([parts["index_proj"]] if "index_proj" in parts else ()))
        b.sizes.largest(n_q=H * D, n_attn=H * D, head_dim_k=D, head_dim_v=D, n_wide=block.n_wide)
        b.sizes.extra.append(block.extra_bytes)
        b.sizes.n_recurrent += shape.n_state
        b.sizes.kv_layers += [KvLayer(1, 0, n) for n in shape.kv_elements]
        b.sizes.weights_per_token += 2 * H * D * shape.window  # the window's keys are multiplied as weights are

    def _grouped(self, name, n_in):
        """The groups' matrices as one, which llama.cpp saves as three axes."""
        b = self.b
        if len(b.tensors.info(name).shape) == 3:
            return b.matrices(name, self.n_groups, self.o_rank, n_in)
        return b.matrix(name, self.n_groups * self.o_rank, n_in)

    def _compressor(self, name, shape, dim):
        b, n = self.b, shape.n_columns(dim)
        b.tensors.info(f"{name}_ape.weight", (shape.ratio, n))
        return (b.matrix(f"{name}_kv.weight", n, b.hparams.n_embd), b.matrix(f"{name}_gate.weight", n, b.hparams.n_embd),
                b.tensors.vector(f"{name}_ape.weight", None), b.tensors.vector(f"{name}_norm.weight", dim))  # fmt: skip
