"""Hyper-parameters of a model file in GGUF's words, and what the buffers of a pass must hold."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from moeengine.errors import ConfigError, GGUFError, UnsupportedError

MAX_COUNT = 1 << 24  # of heads, widths and experts
GATING_FUNCS = {1: "softmax", 2: "sigmoid", 3: "softmax_topk", 4: "sqrt_softplus"}  # expert_gating_func
LEAST_BOUND = 1e-6  # of an activation; a smaller one is none
MAX_LAYERS = 1024  # far above every published model; bounds what a bad file can make us build


@dataclass(frozen=True)
class HParams:
    """Hyper-parameters in GGUF's words. Lengths in elements."""

    arch: str
    n_layer: int  # without next-token-prediction layers
    n_embd: int
    n_vocab: int
    n_ctx_train: int
    n_head: tuple[int, ...]  # a layer; 0: it has no attention
    n_head_kv: tuple[int, ...]  # a layer; 0: it has no attention
    head_dim_k: int
    head_dim_v: int
    n_rot: int
    n_ff: tuple[int, ...]  # a layer
    n_expert: int
    n_expert_used: int
    eps: float
    expert_weights_scale: float
    expert_weights_norm: bool  # what the file says; not every architecture asks
    expert_gating: str | None  # None: the file does not say
    n_expert_groups: int
    n_group_used: int
    n_expert_shared: int
    n_ff_exp: tuple[int, ...]  # a layer; 0: the file does not say
    n_ff_shexp: int  # of all shared experts together, or 0
    n_layer_dense_lead: int  # leading layers without experts


class KvLayer(NamedTuple):
    """What one layer keeps in the KV cache."""

    n_head_kv: int
    head_dim_k: int
    head_dim_v: int  # 0: values are in the keys
    window: int = 0  # keys a query sees, 0: all

    @property
    def elements(self):
        """F16 values a position."""
        return self.n_head_kv * (self.head_dim_k + self.head_dim_v)


@dataclass
class Sizes:
    """What the buffers of a forward pass must hold; the largest over all layers."""

    n_embd: int = 0
    n_q: int = 0
    n_k: int = 0
    n_v: int = 0
    n_attn: int = 0
    n_head: int = 0
    head_dim_k: int = 0
    head_dim_v: int = 0
    n_rot: int = 0
    n_wide: int = 0
    n_ff: int = 0
    n_ff_exp: int = 0
    n_expert: int = 0
    n_expert_used: int = 0
    group_pairs: int = 0
    gather_formats: int = 0
    weights_per_token: int = 0  # weights one token is multiplied with, but for the head
    formats: int = 0  # bit set of activation formats of normed rows
    n_latent: int = 0  # floats a head and token in attention over latents; see graph.mla
    latent_rows: set = field(default_factory=set)  # (activation format, length) of what is quantized a head and token there
    attn_rows: set = field(default_factory=set)  # (activation format, length) of attention results
    ff_rows: set = field(default_factory=set)
    ff_exp_rows: set = field(default_factory=set)
    gather_rows: set = field(default_factory=set)
    keeps: bool = False  # a block reads the stream as it was before others
    n_streams: int = 0  # residual streams, where there are hyper-connections
    extra: list = field(default_factory=list)  # functions (n_ctx, n_tokens, n_threads) -> bytes of Pass.extra
    n_recurrent: int = 0  # float32 values of the recurrent layers' state
    kv_layers: list = field(default_factory=list)  # of KvLayer

    @property
    def kv_elements(self):
        """F16 values a position in layers that keep every position."""
        return sum(layer.elements for layer in self.kv_layers if not layer.window)

    @property
    def window_elements(self):
        """The same in layers with a sliding window."""
        return sum(layer.elements for layer in self.kv_layers if layer.window)

    @property
    def window(self):
        """Keys of the longest sliding window, 0: there is none."""
        return max((layer.window for layer in self.kv_layers), default=0)

    def largest(self, **values):
        for name, value in values.items():
            setattr(self, name, max(getattr(self, name), value))


def read_hparams(file, tensors, n_expert_used=None):
    """HParams of a model file. GGUFError names the key that is missing or out of range."""
    arch = file.architecture

    def count(key, default=None, low=1, high=MAX_COUNT):
        args = () if default is None else (default,)
        return file.get_int(f"{arch}.{key}", *args, lo=low, hi=high)

    embd = tensors.info("token_embd.weight")
    if len(embd.shape) != 2:
        raise GGUFError(f"{tensors.where('token_embd.weight')}: found {len(embd.shape)} dimensions, expected 2")
    n_vocab, n_embd = embd.shape
    if count("embedding_length") != n_embd:
        raise GGUFError(f"{tensors.where('token_embd.weight')}: found {n_embd} columns, expected "
                        f"{arch}.embedding_length = {count('embedding_length')}")
    n_layer = count("block_count", high=MAX_LAYERS) - count("nextn_predict_layers", 0, low=0, high=MAX_LAYERS)
    if n_layer < 1:
        raise GGUFError(f"{file.files[0].path}: key {arch}.block_count: no layer is left beside "
                        f"{arch}.nextn_predict_layers")
    n_head = file.get_per_layer(f"{arch}.attention.head_count", n_layer, lo=0, hi=MAX_COUNT)
    n_head_kv = file.get_per_layer(f"{arch}.attention.head_count_kv", n_layer, n_head, lo=0, hi=MAX_COUNT)
    for il, (h, k) in enumerate(zip(n_head, n_head_kv)):
        if not h and (k or not any(n_head)):  # a layer without KV heads is recurrent, and may be said to have none at all
            file.refuse(f"{arch}.attention.head_count", 0, f"an integer from 1 to {MAX_COUNT} (layer {il})")
        if k and h % k:
            file.refuse(f"{arch}.attention.head_count_kv", k, f"a divisor of {arch}.attention.head_count = {h} (layer {il})")
    usual = max(1, n_embd // next(filter(None, n_head)))
    head_dim_k, head_dim_v = (count(f"attention.{part}_length", usual) for part in ("key", "value"))
    n_expert = count("expert_count", 0, low=0)
    used = count("expert_used_count", 0, low=0)
    if n_expert and not 1 <= used <= n_expert:
        raise GGUFError(f"{file.files[0].path}: key {arch}.expert_used_count: found {used}, expected 1 to {n_expert}")
    if n_expert_used is not None:
        if not 1 <= n_expert_used <= n_expert:
            expected = f"1 to {n_expert}" if n_expert else "nothing: the model has no experts"
            raise ConfigError(f"n_expert_used: found {n_expert_used}, expected {expected}")
        used = n_expert_used
    n_ff = file.get_per_layer(f"{arch}.feed_forward_length", n_layer, 0, lo=0, hi=MAX_COUNT)
    eps_key = f"{arch}.attention.layer_norm_rms_epsilon"
    if eps_key not in file.metadata and f"{arch}.attention.layer_norm_epsilon" in file.metadata:
        eps_key = f"{arch}.attention.layer_norm_epsilon"
    eps = file.get_float(eps_key)
    if not file.get_bool(f"{arch}.attention.causal", True):
        raise UnsupportedError(f"{file.files[0].path}: key {arch}.attention.causal: found false, expected true: models whose "
                               "tokens see the ones after them are not supported")
    if not (math.isfinite(eps) and 0 <= eps < 1):
        raise GGUFError(f"{file.files[0].path}: key {eps_key}: found {eps}, expected 0 to 1")
    return HParams(
        arch=arch, n_layer=n_layer, n_embd=n_embd, n_vocab=n_vocab,
        n_ctx_train=count("context_length", high=1 << 31), n_head=n_head, n_head_kv=n_head_kv,
        head_dim_k=head_dim_k, head_dim_v=head_dim_v,
        n_rot=count("rope.dimension_count", head_dim_k, low=0, high=head_dim_k),
        n_ff=n_ff, n_expert=n_expert, n_expert_used=used, eps=eps,
        expert_weights_scale=file.get_float(f"{arch}.expert_weights_scale", 0.0) or 1.0,
        expert_weights_norm=file.get_bool(f"{arch}.expert_weights_norm", False),
        expert_gating=_gating(file, count("expert_gating_func", 0, low=0)),
        n_expert_groups=count("expert_group_count", 0, low=0), n_group_used=count("expert_group_used_count", 0, low=0),
        n_expert_shared=count("expert_shared_count", 0, low=0),
        n_ff_exp=file.get_per_layer(f"{arch}.expert_feed_forward_length", n_layer, 0, lo=0, hi=MAX_COUNT),
        n_ff_shexp=count("expert_shared_feed_forward_length", 0, low=0),
        n_layer_dense_lead=count("leading_dense_block_count", 0, low=0),
    )


def _gating(file, number):
    if number and number not in GATING_FUNCS:
        known = ", ".join(f"{i} ({name})" for i, name in GATING_FUNCS.items())
        raise UnsupportedError(f"{file.files[0].path}: key {file.architecture}.expert_gating_func: {number} is not "
                               f"supported; supported: {known}")
    return GATING_FUNCS.get(number)


def bounds_per_layer(b, key, default=None):
    """Bounds of activations, one for all layers or one each: list of float, 0 for none. default: where the file has none."""
    file, n_layer = b.file, b.hparams.n_layer
    if default is not None and key not in file.metadata:
        return default
    value = file.get(key)
    if not hasattr(value, "dtype"):
        values = [file.get_float(key, lo=0.0)] * n_layer
    else:
        values = file.get_array(key, kind="float").tolist()
    if len(values) < n_layer or not all(0 <= value < math.inf for value in values):
        file.refuse(key, value, f"{n_layer} numbers, one a layer, 0 or more")
    return [bound if bound > LEAST_BOUND else 0.0 for bound in values[:n_layer]]
