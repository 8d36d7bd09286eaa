"""Shared vocabulary of the architecture files: one call a kind of block.

An architecture file says in which order blocks stand and what is peculiar; how a block is assembled
from tensors stands here once.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from moeengine.errors import GGUFError
from moeengine.graph.attention import AttentionBlock
from moeengine.graph.block import KeepBlock
from moeengine.graph.chunk_experts import ChunkExpertsBlock
from moeengine.graph.early_router import EarlyRouterBlock
from moeengine.graph.embed_head import EmbedBlock, HeadBlock
from moeengine.graph.expert_tiers import BankWeights, TierWeights
from moeengine.graph.ffn import FfnBlock
from moeengine.graph.hparams import GATING_FUNCS, KvLayer, Sizes, read_hparams
from moeengine.graph.moe_ffn import GROUP_PAIRS, MoeBlock
from moeengine.graph.rope import MOST_SCALE, rope_config, text_factors
from moeengine.graph.router import check_groups
from moeengine.graph.weights import Tensors, Vector
from moeengine.loader.banks import check_counts, chunk_tier, layer_banks

MAX_WINDOW = (1 << 31) - 1
# The keys of what router.check_groups finds fault with.
GROUP_KEYS = {"n_group": "expert_group_count", "n_group_used": "expert_group_used_count", "n_expert_used": "expert_used_count"}


class Builder:
    """Collects the blocks of one model; every method appends one."""

    def __init__(self, file, *, n_expert_used=None):
        self.file = file
        self.tensors = Tensors(file)
        self.hparams = read_hparams(file, self.tensors, n_expert_used)
        self.sizes = Sizes(n_embd=self.hparams.n_embd, n_expert_used=self.hparams.n_expert_used,
                           group_pairs=GROUP_PAIRS if self.hparams.n_expert else 0)
        self.blocks = []
        self.moe_blocks = []
        self.banks = []  # LayerBanks of the layers with experts
        self.weights = {}
        self.centred = False  # the stream is read through LayerNorm, not RMS norm

    def matrix(self, name, n_rows, n_in, **options):
        """Weight (n_rows, n_in), remembered by name; see Tensors.matrix."""
        return self._remembered(name, self.tensors.matrix(name, n_rows, n_in, **options), n_rows, n_in)

    def taps(self, name, n_channels, n_taps):
        """Vector (n_taps, n_channels) of a convolution, whose tensor is (n_channels, n_taps)."""
        self.tensors.info(name, (n_channels, n_taps))
        rows = self.tensors.vector(name, None).array().reshape(n_channels, n_taps)
        return Vector(np.ascontiguousarray(rows.T), name)

    def matrices(self, name, n, n_rows, n_in):
        """n matrices (n_rows, n_in) of one tensor as a Weight (n * n_rows, n_in), remembered by name."""
        return self._remembered(name, self.tensors.matrices(name, n, n_rows, n_in), n * n_rows, n_in)

    def _remembered(self, name, weight, n_rows, n_in):
        if weight is not None:
            self.weights[name] = weight
            if name != "token_embd.weight":
                self.sizes.weights_per_token += n_rows * n_in
        return weight

    def normed(self, *weights):
        """Notes that these matrices are multiplied with normed rows of the residual stream."""
        for weight in weights:
            self.sizes.formats |= 1 << weight.x_format

    def embed(self, *, scale=1.0, sections=None, log_multiplier_cancels=False, with_rope=True, window_rope="same", n_rot=None,
              n_factors=None, default_beta_fast=32.0):
        """Token embedding and rotation table, whose RopeConfig is returned (None: nothing is rotated).

        sections : "blocks" or "interleaved" where the file may part the rotated pairs into sections with positions of their
                   own (M-RoPE); see text_factors
        log_multiplier_cancels : bool     see rope_config
        with_rope : bool                  else another block makes the table
        window_rope : RopeConfig or None  of layers with a sliding window, None: they do not rotate; "same": as other layers
        n_rot : int                       rotated values of a head in other layers; None: `rope.dimension_count`
        n_factors : int                   frequency factors that the file has; None: one a pair
        default_beta_fast : float         see rope_config
        """
        hp = self.hparams
        n_rot = hp.n_rot if n_rot is None else n_rot
        n_factors = n_factors or n_rot // 2
        factors = long_factors = self.tensors.vector("rope_freqs.weight", n_factors, optional=True)
        if factors is None:
            factors, long_factors = (self.tensors.vector(f"rope_factors_{length}.weight", n_factors, optional=True)
                                     for length in ("short", "long"))
        if sections:
            factors = long_factors = text_factors(self.file, hp.n_rot, factors, interleaved=sections == "interleaved")
        rope = None
        if n_rot and with_rope:
            rope = rope_config(self.file, n_rot=n_rot, n_ctx_train=hp.n_ctx_train, freq_factors=factors,
                               long_factors=long_factors, log_multiplier_cancels=log_multiplier_cancels,
                               default_beta_fast=default_beta_fast)
        self.token_embd = self.matrix("token_embd.weight", hp.n_vocab, hp.n_embd, with_scale=False, with_bias=False)
        self.rope, self.window_rope = rope, rope if window_rope == "same" else window_rope
        self.ropes = [config for config in (rope, self.window_rope) if config is not None]
        if self.window_rope == rope:
            del self.ropes[1:]
        self.blocks.append(EmbedBlock(token_embd=self.token_embd, ropes=self.ropes, scale=scale))
        self.sizes.largest(n_rot=sum(config.n_rot for config in self.ropes))
        return rope

    def layer_norms(self, **default):
        """The stream is read through LayerNorm from here on. default: eps, where the file has no `layer_norm_epsilon`."""
        eps = self.file.get_float(f"{self.hparams.arch}.attention.layer_norm_epsilon", *default.values(), lo=0, hi=1)
        self.centred, self.hparams = True, replace(self.hparams, eps=eps)

    def keep(self):
        """Keep the stream as it is for blocks that take it so (of_kept=True), beside others that change it."""
        self.sizes.keeps = True
        self.blocks.append(KeepBlock(self.hparams.n_embd))

    def windows(self, *, every, dense_first=False, window=None):
        """Keys that a query sees in each layer, 0 for all: list of int.

        `attention.sliding_window` keys in the layers that `attention.sliding_window_pattern` names: a flag a layer, or
        a number: all but the last of so many layers, 0 for all of them. every : the number where the file has none, or
        None: it must have flags. dense_first : all but the first of so many, instead. window : int, in the place of the key
        """
        file, n_layer, key = self.file, self.hparams.n_layer, f"{self.hparams.arch}.attention.sliding_window"
        window = window or file.get_int(key, lo=1, hi=MAX_WINDOW)
        flags = file.get(f"{key}_pattern", None)
        if isinstance(flags, np.ndarray):
            if flags.dtype.kind not in "biu" or len(flags) < n_layer:
                file.refuse(f"{key}_pattern", flags, f"{n_layer} flags, one a layer")
        else:
            if every is None:
                file.get_array(f"{key}_pattern")
            every = file.get_int(f"{key}_pattern", every, lo=0)
            dense = 0 if dense_first else every - 1
            flags = [every == 0 or il % every != dense for il in range(n_layer)]
        return [window if flag else 0 for flag in flags[:n_layer]]

    def attention(self, il, *, neox, head_norm=None, norm_after_rope=False, residual_scale=1.0, scale=None, scale_queries=False,
                  window=0, sinks=False, with_rope=True, with_gate=False, gate=None, head_dim=None, optional_values=False,
                  norm_values=False, post_norm=None, **options):
        """Self-attention.

        head_norm : None, "head" (one weight a head value), "unit" (the same without weights) or "row" (over all heads)
        scale : float                   of the scores; None: `attention.scale`, or 1 / sqrt(Dk)
        scale_queries : bool            the queries are scaled, not the scores
        window : int                    keys a query sees, 0 for all
        sinks : bool                    a logit a head takes part in the softmax
        with_gate : bool                every head of q has a gate of its result behind it
        gate : None, "values" or "heads"    `attn_gate` has a gate for each value of the result, or each head
        head_dim : (Dk, Dv)             None: those of the metadata
        optional_values : bool          where the file has no `attn_v`, values are what `attn_k` gives
        norm_values, post_norm, options    see AttentionBlock; post_norm: name of the norm
        """
        hp, blk = self.hparams, f"blk.{il}."
        E, H, K = hp.n_embd, hp.n_head[il], hp.n_head_kv[il]
        Dk, Dv = head_dim or (hp.head_dim_k, hp.head_dim_v)
        n_q = H * Dk * (2 if with_gate else 1)
        if not K:
            self.file.refuse(f"{hp.arch}.attention.head_count_kv", 0, f"1 or more: layer {il} is attention")
        if (with_gate or optional_values) and Dk != Dv:
            raise GGUFError(f"{self.file.files[0].path}: key {hp.arch}.attention.value_length: found {Dv}, expected {Dk} as "
                            f"{hp.arch}.attention.key_length")
        if self.tensors.has(blk + "attn_qkv.weight"):
            qkv = self.matrix(blk + "attn_qkv.weight", n_q + K * Dk + K * Dv, E)
            q, k, v = qkv.rows(0, n_q), qkv.rows(n_q, K * Dk), qkv.rows(n_q + K * Dk, K * Dv)
        else:
            q = self.matrix(blk + "attn_q.weight", n_q, E)
            k = self.matrix(blk + "attn_k.weight", K * Dk, E)
            v = self.matrix(blk + "attn_v.weight", K * Dv, E, optional=optional_values)
        gates = self.matrix(blk + "attn_gate.weight", {"values": H * Dv, "heads": H}[gate], E) if gate else None
        o = self.matrix(blk + "attn_output.weight", E, H * Dv)
        widths = {"head": (Dk, Dk), "row": (H * Dk, K * Dk)}.get(head_norm)
        q_norm = k_norm = Vector(np.ones(Dk)) if head_norm == "unit" else None
        if widths:
            q_norm, k_norm = (self.tensors.vector(f"{blk}attn_{part}_norm.weight", n) for part, n in zip("qk", widths))
        scale = scale or self.file.get_float(f"{hp.arch}.attention.scale", 0.0, lo=0, hi=MOST_SCALE) or 1.0 / math.sqrt(Dk)
        rope = (self.window_rope if window else self.rope) if with_rope else None
        n_rot = rope.n_rot if rope else 0
        if n_rot > Dk:
            raise GGUFError(f"{self.file.files[0].path}: key {hp.arch}.rope.dimension_count{'_swa' if window else ''}: found "
                            f"{n_rot}, expected at most {Dk}, the length of a key (layer {il})")
        self.blocks.append(AttentionBlock(
            attn_norm=self.tensors.vector(blk + "attn_norm.weight", E),
            norm_bias=self.tensors.vector(blk + "attn_norm.bias", E, optional=True), q=q, k=k, v=v, o=o, gate=gates,
            q_norm=q_norm, k_norm=k_norm, norm_whole_row=head_norm == "row", n_head=H, n_head_kv=K, head_dim_k=Dk, head_dim_v=Dv,
            n_rot=n_rot, rope_at=sum(r.n_rot for r in self.ropes[:self.ropes.index(rope)]) if rope else 0, neox=neox, eps=hp.eps,
            scale=1.0 if scale_queries else scale, q_scale=scale if scale_queries else 1.0,
            kv_offset=self.sizes.window_elements if window else self.sizes.kv_elements, window=window,
            norm_after_rope=norm_after_rope, residual_scale=residual_scale,
            sinks=self.tensors.vector(blk + "attn_sinks.weight", H) if sinks else None,
            with_gate=with_gate, norm_values=norm_values,
            post_norm=self.tensors.vector(f"{blk}{post_norm}.weight", E) if post_norm else None, centred=self.centred,
            **options,
        ))
        self.normed(*(weight for weight in (q, k, v, gates) if weight is not None))
        self.sizes.largest(n_head=H, n_q=H * Dk, n_attn=H * Dv, n_k=K * Dk, n_v=K * Dv, head_dim_k=Dk, head_dim_v=Dv)
        self.sizes.largest(n_wide=n_q if with_gate else gates.n_rows if gates else 0)
        self.sizes.attn_rows.add((o.x_format, H * Dv))
        self.sizes.kv_layers.append(KvLayer(K, Dk, Dv, window))

    def _dense(self, blk, suffix, n_ff, gated=True):
        """gate (None: not gated), up and down of a dense network, noted for the buffers."""
        E, gate = self.hparams.n_embd, None
        if gated:
            gate = self.matrix(f"{blk}ffn_gate{suffix}.weight", n_ff, E)
            self.normed(gate)
        up = self.matrix(f"{blk}ffn_up{suffix}.weight", n_ff, E)
        down = self.matrix(f"{blk}ffn_down{suffix}.weight", E, n_ff)
        self.normed(up)
        self.sizes.largest(n_ff=n_ff)
        self.sizes.ff_rows.add((down.x_format, n_ff))
        return gate, up, down

    def ffn(self, il, *, norm="ffn_norm", residual_scale=1.0, post_norm=None, after=1.0, activation="silu", bound=0.0,
            gated=True, n_ff=None, of_kept=False):
        """Dense gated feed-forward network, or without a gate and with squared ReLU. norm, post_norm: names of the norms
        before and after it; n_ff: None: `feed_forward_length`; the rest: see FfnBlock."""
        hp, blk = self.hparams, f"blk.{il}."
        gate, up, down = self._dense(blk, "", n_ff or hp.n_ff[il], gated=gated)
        self.blocks.append(FfnBlock(ffn_norm=self.tensors.vector(f"{blk}{norm}.weight", hp.n_embd),
                                    gate=gate, up=up, down=down, eps=hp.eps, residual_scale=residual_scale,
                                    activation=activation if gated else "relu_sqr", bound=bound, after=after,
                                    centred=self.centred, of_kept=of_kept,
                                    post_norm=self.tensors.vector(f"{blk}{post_norm}.weight", hp.n_embd) if post_norm else None))

    def _router(self, il, with_scale=True):
        name = f"blk.{il}.ffn_gate_inp.weight"
        shape = self.tensors.info(name, (None, self.hparams.n_embd)).shape
        n_expert = shape[0] if len(shape) == 2 else 1
        router = self.matrix(name, n_expert, self.hparams.n_embd, with_scale=with_scale)
        self.normed(router)
        self.sizes.largest(n_expert=router.n_rows)
        return router

    def early_router(self, il):
        """The router of layer `il`, ahead of its attention and over the residual stream as it is; its Weight is for moe()."""
        router = self._router(il)
        self.blocks.append(EarlyRouterBlock(router))
        return router

    def moe(self, il, *, norm_topk, gating="softmax", n_ff_exp=None, n_ff_shexp=0, shared_gate=False, shared="_shexp",
            norm="ffn_norm", by_token=False, gated=True, router=None, router_norm=None, post_norm=None, weights_scale=None, activation="silu", shared_activation="silu", **options):
        """Routed experts over all banks of the layer, and a shared expert where n_ff_shexp > 0.

        gating : None      what the file says; GGUFError where it does not
        shared : str       ending of the names of the shared expert's matrices
        norm, post_norm : str    names of the norms before and after the network
        router_norm : Vector or None    see MoeBlock; the router's `.scale` is part of it
        by_token : bool    a table of the file says which experts a token has
        gated : bool       else experts have no gate, and squared ReLU in the place of an activation
        router : Weight or None    of early_router, where there was one
        weights_scale : float or None    None: what the file says
        options :          see MoeBlock
        """
        hp, blk = self.hparams, f"blk.{il}."
        E = hp.n_embd
        is_early, router = router is not None, router or self._router(il, with_scale=True if router_norm is None else None)
        banks = layer_banks(self.file, il, n_embd=E, n_expert_used=hp.n_expert_used, n_ff_exp=n_ff_exp, gated=gated)
        if banks is None:
            raise GGUFError(f"{self.tensors.where(blk + 'ffn_down_exps.weight')}: missing; layer {il} has a router")
        if not hp.n_expert:
            raise GGUFError(f"{self.file.files[0].path}: key {hp.arch}.expert_count: found none, expected the number of "
                            f"experts; layer {il} has {banks.n_expert}")
        gating = gating or hp.expert_gating
        if gating is None:
            raise GGUFError(f"{self.file.files[0].path}: key {hp.arch}.expert_gating_func: not found, expected one of "
                            f"{', '.join(map(str, GATING_FUNCS))}")
        wrong = check_groups(banks.n_expert, hp.n_expert_used, hp.n_expert_groups, hp.n_group_used)
        if wrong:
            key = f"{hp.arch}.{GROUP_KEYS[wrong[0]]}"
            raise GGUFError(f"{self.file.files[0].path}: key {key}: layer {il}: {wrong[1]}")
        self.banks.append(banks)
        tiers = [self._tier(t) for t in banks.tiers]
        gate = None
        shared = self._dense(blk, shared, n_ff_shexp, gated=gated) if n_ff_shexp else None
        if shared_gate:
            gate = self.matrix(blk + "ffn_gate_inp_shexp.weight", 1, E)
            self.normed(gate)
        select_bias = None
        for name in ("exp_probs_b.bias", "exp_probs_b"):  # hy_v3 leaves the ending out
            select_bias = select_bias or self.tensors.vector(blk + name, router.n_rows, optional=True)
        table = None
        if by_token:
            table = self.tensors.ids(blk + "ffn_gate_tid2eid.weight", hp.n_vocab, hp.n_expert_used, banks.n_expert)
        block = MoeBlock(
            il=il, i_moe=len(self.moe_blocks),
            ffn_norm=self.tensors.vector(f"{blk}{norm}.weight", E),
            norm_bias=self.tensors.vector(f"{blk}{norm}.bias", E, optional=True), router=router, tiers=tiers,
            n_expert_used=hp.n_expert_used, gating=gating, norm_topk=norm_topk,
            weights_scale=weights_scale or hp.expert_weights_scale,
            select_bias=select_bias,
            n_group=hp.n_expert_groups, n_group_used=hp.n_group_used, shared=shared, shared_gate=gate, eps=hp.eps,
            activation=activation if gated else "relu_sqr", shared_activation=shared_activation if gated else "relu_sqr",
            by_token=table, router_norm=router_norm, router_is_early=is_early,
            post_norm=self.tensors.vector(f"{blk}{post_norm}.weight", E) if post_norm else None, centred=self.centred,
            **options,
        )
        self.blocks.append(block)
        self.moe_blocks.append(block)
        bank = banks.tiers[0].up
        self.sizes.weights_per_token += (3 if gated else 2) * hp.n_expert_used * bank.n_rows * bank.n_cols

    def chunk_experts(self, il, *, n_sharing, n_ff, scale):
        """The experts of n_ff hidden values that n_sharing routed ones share, behind these; see ChunkExpertsBlock."""
        hp, n_routed = self.hparams, self.banks[-1].n_expert
        tier = self._tier(chunk_tier(self.file, il, n_embd=hp.n_embd, n_expert=n_routed // n_sharing, n_ff=n_ff))
        for bank in tier.banks:
            self.tensors.pointers.append((bank.tensor.name, bank.address))
            self.sizes.weights_per_token += hp.n_expert_used * bank.first.n_rows * bank.first.n_in
        self.blocks.append(ChunkExpertsBlock(il=il, tier=tier, n_routed=n_routed, n_expert_used=hp.n_expert_used,
                                             weights_scale=hp.expert_weights_scale, scale=scale))

    def _tier(self, tier):
        gate, up, down = (self._bank(b, tier.n_expert) for b in (tier.gate, tier.up, tier.down))
        self.normed(gate.first, up.first)
        self.sizes.largest(n_ff_exp=down.first.n_in, gather_formats=2)
        self.sizes.gather_rows |= {(gate.first.x_format, gate.first.n_in), (up.first.x_format, up.first.n_in)}
        self.sizes.ff_exp_rows.add((down.first.x_format, down.first.n_in))
        return TierWeights(tier.first_expert, tier.n_expert, gate, up, down)

    def _bank(self, bank, n_expert):
        first = self.tensors.expert(bank, self.tensors.info(bank.name))
        scale = bias = None
        if bank.scale and self.tensors.is_applied(bank.scale):
            values = self.tensors.vector(bank.scale, None).array()
            scale = Vector(np.repeat(values, n_expert) if values.size == 1 else values, bank.scale)
        if bank.bias:  # of a fused tensor: this half's rows
            values = self.tensors.vector(bank.bias, None).array().reshape(n_expert, -1)
            bias = Vector(values[:, bank.row_offset:bank.row_offset + bank.n_rows], bank.bias)
        return BankWeights(first, bank.expert_stride, scale, bias, bank)

    def head(self, *, scale=1.0, norm="output_norm", softcap=0.0):
        """The last block, see HeadBlock; what the file says of all layers together is checked here. norm: name of the norm
        before it."""
        hp = self.hparams
        check_counts(self.file, self.banks, hp.n_expert)
        output = self.matrix("output.weight", hp.n_vocab, hp.n_embd, optional=True)
        if output is None:  # tied: the embedding is the head
            output = self.token_embd
        self.normed(output)
        self.blocks.append(HeadBlock(output_norm=self.tensors.vector(f"{norm}.weight", hp.n_embd),
                                     norm_bias=self.tensors.vector(f"{norm}.bias", hp.n_embd, optional=True),
                                     output=output, eps=hp.eps, scale=scale, softcap=softcap, centred=self.centred))
