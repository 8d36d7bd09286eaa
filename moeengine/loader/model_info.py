"""What a model file holds and what running it takes, told without loading it.

Tensors alone are read from the directory; `find_bad_blocks` is the one that reads weights.
"""

import math
import re
from dataclasses import dataclass

import gguf
import numpy as np

from moeengine.config import N_CTX_DEFAULT
from moeengine.kernels import dequantize
from moeengine.loader.banks import all_banks
from moeengine.loader.compressed_kv import compressed_layers
from moeengine.loader.indexed_kv import index_elements

EXPERT_TENSOR = re.compile(r"blk\.\d+\.ffn_(gate|up|down|gate_up)_exps(_tier\d+)?\.weight")
KV_BYTES = 2  # a value of the KV cache is F16
CHECK_BYTES = 1 << 22  # of weights dequantized at a time


@dataclass(frozen=True)
class QuantShare:
    """Tensors of one quant type among the experts or among the rest."""

    qtype: str
    is_expert: bool
    n_tensors: int
    n_weights: int
    n_bytes: int


@dataclass(frozen=True)
class ExpertFigures:
    """n_expert, n_expert_used : experts a layer (the most any has), chosen for a token
    n_layer : layers with experts
    total_bytes : all experts of all layers
    expert_bytes_min, expert_bytes_max : gate, up and down of one expert, over all layers
    has_gate : bool                      else an expert is up and down
    token_bytes : expert bytes one token reads, all layers, at average size
    """

    n_expert: int
    n_expert_used: int
    n_layer: int
    total_bytes: int
    expert_bytes_min: int
    expert_bytes_max: int
    has_gate: bool
    token_bytes: int


@dataclass(frozen=True)
class ModelInfo:
    """All figures in bytes unless named otherwise.

    dense_bytes : tensors that every token needs whole
    row_bytes : what a token reads of the tensors it takes one row of (an embedding that is no head)
    kv_bytes : KV cache of n_ctx tokens
    smallest_budget : dense, KV cache and the experts of one token: with less, nothing stays cached
    useful_budget : the same with the experts of two tokens, or all where that is less
    token_bytes : expected reading for one token, dense and experts
    """

    arch: str
    name: str
    n_shards: int
    n_tensors: int
    n_weights: int
    file_bytes: int
    n_ctx: int
    n_ctx_train: int
    quants: list
    experts: ExpertFigures | None
    dense_bytes: int
    row_bytes: int
    kv_bytes: int
    smallest_budget: int
    useful_budget: int
    token_bytes: int


def describe(model_file, n_ctx=None, kv_bytes=None):
    """ModelInfo of an open ModelFile, for timelines of n_ctx tokens (None: as Engine chooses).

    kv_bytes : callable    kv_bytes(n_ctx), where the model is known better than by its keys, which tell the most it can be

    Raises
    ------
    GGUFError            banks that do not fit together, a key of the wrong type
    """
    arch = model_file.architecture
    n_ctx_train = model_file.get_int(f"{arch}.context_length", 0, lo=0)
    n_ctx = n_ctx or min(n_ctx_train or N_CTX_DEFAULT, N_CTX_DEFAULT)
    experts = _experts(model_file, arch)
    dense, row = _dense_bytes(model_file)
    kv = kv_bytes(n_ctx) if kv_bytes else n_ctx * kv_bytes_per_token(model_file) + recurrent_bytes(model_file)
    expert_token = experts.token_bytes if experts else 0
    expert_total = experts.total_bytes if experts else 0
    return ModelInfo(
        arch=arch,
        name=model_file.get_str("general.name", ""),
        n_shards=len(model_file.files),
        n_tensors=len(model_file.tensors),
        n_weights=sum(math.prod(t.shape) for t in model_file.tensors.values()),
        file_bytes=model_file.total_bytes,
        n_ctx=n_ctx,
        n_ctx_train=n_ctx_train,
        quants=_quants(model_file),
        experts=experts,
        dense_bytes=dense,
        row_bytes=row,
        kv_bytes=kv,
        smallest_budget=dense + kv + expert_token,
        useful_budget=dense + kv + min(2 * expert_token, expert_total),
        token_bytes=dense + row + expert_token,
    )


def _quants(model_file):
    shares = {}
    for name, info in model_file.tensors.items():
        key = (info.qtype.name, bool(EXPERT_TENSOR.fullmatch(name)))
        n, n_weights, n_bytes = shares.get(key, (0, 0, 0))
        shares[key] = (n + 1, n_weights + math.prod(info.shape), n_bytes + info.n_bytes)
    rows = [QuantShare(*key, *figures) for key, figures in shares.items()]
    return sorted(rows, key=lambda r: (not r.is_expert, -r.n_bytes))


def _experts(model_file, arch):
    n_layer = model_file.get_int(f"{arch}.block_count", lo=0, hi=1 << 16)
    n_embd = model_file.get_int(f"{arch}.embedding_length", lo=1)
    if not any(EXPERT_TENSOR.fullmatch(name) for name in model_file.tensors):
        return None
    n_used = model_file.get_int(f"{arch}.expert_used_count", 1, lo=1)
    layers = [b for b in all_banks(model_file, n_layer, n_embd=n_embd, n_expert_used=n_used)
              if b and not model_file.is_skipped(b.router)]  # fmt: skip
    if not layers:  # the file counts fewer layers than it has
        return None
    sizes = [[sum(n for _, _, n in b.slices(ie)) for ie in range(b.n_expert)] for b in layers]
    flat = [n for layer in sizes for n in layer]
    return ExpertFigures(
        n_expert=max(map(len, sizes)),
        n_expert_used=n_used,
        n_layer=len(layers),
        total_bytes=sum(flat),
        expert_bytes_min=min(flat),
        expert_bytes_max=max(flat),
        has_gate=layers[0].tiers[0].is_gated,
        token_bytes=sum(n_used * sum(layer) // len(layer) for layer in sizes),
    )


def _dense_bytes(model_file):
    """(bytes read whole, bytes of single rows) of the tensors that are no experts."""
    whole = row = 0
    for name, info in model_file.tensors.items():
        if name == "token_embd.weight" and "output.weight" in model_file.tensors:
            row += info.row_bytes
        elif not EXPERT_TENSOR.fullmatch(name) and not model_file.is_skipped(name):
            whole += info.n_bytes
    return whole, row


def kv_bytes_per_token(model_file):
    """Bytes of keys and values that one token adds, all layers. GGUFError: a key is missing or wrong."""
    arch = model_file.architecture
    n_layer = model_file.get_int(f"{arch}.block_count", lo=0, hi=1 << 16)
    n_head = model_file.get_per_layer(f"{arch}.attention.head_count", n_layer, lo=0)
    n_head_kv = model_file.get_per_layer(f"{arch}.attention.head_count_kv", n_layer, n_head, lo=0)
    n_embd = model_file.get_int(f"{arch}.embedding_length", lo=1)
    head_dim = n_embd // max(n_head) if n_head and max(n_head) > 0 else 0
    k = model_file.get_int(f"{arch}.attention.key_length", head_dim, lo=0)
    v = model_file.get_int(f"{arch}.attention.value_length", head_dim, lo=0)
    if model_file.get_int(f"{arch}.attention.key_length_mla", 0, lo=0):
        v = 0  # the cache holds latents, which are keys and values
    n_nextn = model_file.get_int(f"{arch}.nextn_predict_layers", 0, lo=0)
    if _compresses(model_file):
        return KV_BYTES * sum(sum(shape.kv_elements) for shape in compressed_layers(model_file, max(0, n_layer - n_nextn)))
    k_swa = model_file.get_int(f"{arch}.attention.key_length_swa", k, lo=0)
    v_swa = model_file.get_int(f"{arch}.attention.value_length_swa", v, lo=0)
    n_values = index_elements(model_file, max(0, n_layer - n_nextn))
    for il, n in enumerate(n_head_kv[: max(0, n_layer - n_nextn)]):
        if not _is_recurrent(model_file, il):
            n_values += n * (k_swa + v_swa if _is_windowed(model_file, il) else k + v)
    return KV_BYTES * n_values


def recurrent_bytes(model_file):
    """Bytes of the state, and of a copy of it, that a timeline keeps for layers without keys and values; 0 without any."""
    arch, n = model_file.architecture, 0
    if _compresses(model_file):
        n_layer = model_file.get_int(f"{arch}.block_count", lo=0, hi=1 << 16)
        n_nextn = model_file.get_int(f"{arch}.nextn_predict_layers", 0, lo=0)
        return 2 * 4 * sum(shape.n_state for shape in compressed_layers(model_file, max(0, n_layer - n_nextn)))
    for il in range(model_file.get_int(f"{arch}.block_count", lo=0, hi=1 << 16)):
        if _is_recurrent(model_file, il):
            shape = model_file.tensors[f"blk.{il}.ssm_conv1d.weight"].shape
            n += math.prod(shape) - shape[0]
            n += model_file.get_int(f"{arch}.ssm.inner_size", lo=0) * model_file.get_int(f"{arch}.ssm.state_size", lo=0)
        elif conv := model_file.tensors.get(f"blk.{il}.shortconv.conv.weight"):
            n += math.prod(conv.shape) - conv.shape[0]
        elif conv := model_file.tensors.get(f"blk.{il}.ssm_conv1d_q.weight"):
            n_inner = math.prod(conv.shape) // max(1, conv.shape[-1])
            n += 3 * (math.prod(conv.shape) - n_inner) + n_inner * model_file.get_int(f"{arch}.kda.head_dim", lo=1)
    return 2 * 4 * n


def _compresses(model_file):
    return f"{model_file.architecture}.attention.compress_ratios" in model_file.metadata


def _is_windowed(model_file, il):
    """Whether the file has a flag for the layer that says so."""
    flags = model_file.metadata.get(f"{model_file.architecture}.attention.sliding_window_pattern")
    return isinstance(flags, np.ndarray) and il < len(flags) and bool(flags[il])


def _is_recurrent(model_file, il):
    return f"blk.{il}.ssm_conv1d.weight" in model_file.tensors


def find_bad_blocks(model_file, progress=None):
    """Blocks with NaN or infinity among their weights; reads every tensor once.

    progress : callable      progress(n_done, n_total) bytes

    Yields
    ------
    (name, expert, n_bad, n_blocks) : expert is None for a tensor that is not a bank

    Raises
    ------
    SupplyError    the file lost bytes meanwhile
    """
    n_total, n_done = sum(t.n_bytes for t in model_file.tensors.values()), 0
    for name, info in model_file.tensors.items():
        raw = model_file.raw(name)
        banks = enumerate(raw) if EXPERT_TENSOR.fullmatch(name) and raw.ndim == 3 else [(None, raw)]
        for ie, part in banks:
            n_bad, n_blocks = _bad_blocks(part.reshape(-1, info.row_bytes), info.qtype)
            if n_bad:
                yield name, ie, n_bad, n_blocks
            n_done += part.nbytes
            if progress is not None:
                progress(n_done, n_total)
    model_file.require_whole()


def _bad_blocks(rows, qtype):
    """(bad, all) blocks of uint8 (R, bytes); floats count one by one."""
    block, _ = gguf.GGML_QUANT_SIZES[qtype]
    n_bad = n_blocks = 0
    step = max(1, CHECK_BYTES // max(rows.shape[1], 1))
    for begin in range(0, len(rows), step):
        values = _values(rows[begin : begin + step], qtype).reshape(-1, block)
        bad = ~np.isfinite(values).all(axis=1)
        n_bad, n_blocks = n_bad + int(bad.sum()), n_blocks + len(bad)
    return n_bad, n_blocks


def _values(rows, qtype):
    """float32 of weights; integer and F64 tensors, which are no weights, as they are."""
    plain = {"I8": "i1", "I16": "<i2", "I32": "<i4", "I64": "<i8", "F64": "<f8"}
    if qtype.name in plain:
        return rows.view(plain[qtype.name])
    return dequantize(rows, qtype)
