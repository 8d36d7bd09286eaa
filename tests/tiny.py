"""Writes tiny but complete GGUF models with seeded random weights, through gguf.GGUFWriter.

Shared by all tests. `write_tiny(path)` gives a qwen3moe of about half a megabyte with a byte-level
BPE tokenizer, so any text can be tokenized.
"""

from dataclasses import dataclass, field
from pathlib import Path

import gguf
import numpy as np

from tests.tiny_weights import dequantized, random_weights

QType = gguf.GGMLQuantizationType
DENSE_ARCHS = ("llama", "qwen2", "qwen3")
MOE_ARCHS = ("llama", "qwen2moe", "qwen3moe", "olmoe", "gpt-oss")

CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = ("Ġ t", "h e", "i n", "Ġ a", "e r", "o n", "Ġt he", "r e", "a n", "Ġ s", "l l", "o r")


@dataclass
class Tiny:
    """What was written. `path` is the file to open (the first shard of a split model)."""

    path: Path
    arch: str
    hparams: dict
    metadata: dict = field(repr=False)
    tensors: dict = field(repr=False)  # name -> (array as written, GGMLQuantizationType)

    def weight(self, name):
        """float32 array of the tensor, row-major, as an independent reference would see it."""
        return dequantized(*self.tensors[name])


def write_tiny(
    path, arch="qwen3moe", *, n_layer=2, n_expert=None, n_expert_used=2, quant="Q8_0", quants=None, tiers=None,
    n_embd=None, n_ff=None, n_ff_exp=None, n_ff_shexp=None, n_head=4, n_head_kv=2, head_dim=None, n_ctx=256, tied=False,
    fused_gate_up=False, seed=0, alignment=None, n_shards=1, tokenizer=True, metadata=None, tensors=None,
):  # fmt: skip
    """Write a loadable model and return a `Tiny` that describes it.

    Parameters
    ----------
    arch : str               llama, qwen2, qwen3 (dense); llama with n_expert, qwen2moe, qwen3moe,
                             olmoe, gpt-oss
    n_expert : int or list   experts (a list: one count a layer); None = 8 for the MoE archs, 0 for
                             llama
    quant : str              type of all matrices; norms, biases and routers stay F32
    quants : dict            {substring of the tensor name: type}, first match wins over `quant`
    tiers : list             [(n_expert, type), ...]: spread each layer's experts over tier 0, 1, ...
    n_embd, n_ff, n_ff_exp, n_ff_shexp, head_dim : int   default to 64 / 96 / 64 / 96 / 16, or to 256
                             (head_dim 64) where a type with blocks over 32 is used
    tied : bool              leave output.weight out
    fused_gate_up : bool     one ffn_gate_up_exps tensor instead of gate and up
    alignment : int          general.alignment, written when not None
    n_shards : int           split into about that many files; `path` names the prefix then
    tokenizer : bool         write the byte-level BPE tokenizer (271 tokens); without it n_vocab is 128
    metadata : dict          key -> value to add or replace; None removes the key
    tensors : dict           name -> float32 array (written F32) or (array, type) to add or replace;
                             None removes
    """
    rng = np.random.default_rng(seed)
    is_moe = arch != "llama" and arch in MOE_ARCHS or bool(n_expert)
    wide = any(
        _block(t) > 32 for t in [quant, *(quants or {}).values(), *(t for _, t in tiers or [])]
    )
    hp = dict(
        n_layer=n_layer, n_embd=n_embd or (256 if wide else 64), n_ff=n_ff or (256 if wide else 96),
        n_head=n_head, n_head_kv=n_head_kv, head_dim=head_dim or (64 if wide else 16), n_ctx=n_ctx, n_vocab=len(_vocab()) if tokenizer else 128,
    )  # fmt: skip
    if is_moe:
        counts = n_expert if isinstance(n_expert, (list, tuple)) else [n_expert or 8] * n_layer
        if tiers:
            counts = [sum(n for n, _ in tiers)] * n_layer
        hp |= dict(
            n_expert=list(counts), n_expert_used=n_expert_used,
            n_ff_exp=n_ff_exp or (hp["n_ff"] if arch == "llama" else 256 if wide else 64),
            n_ff_shexp=n_ff_shexp or (256 if wide else 96),
        )  # fmt: skip
    rows = _tensor_shapes(arch, hp, is_moe, tied, fused_gate_up, tiers)
    made = {}
    for name, shape, kind, forced in rows:
        qtype = QType.F32 if kind != "matrix" else QType[forced or _choose(name, quant, quants)]
        if kind == "norm":
            made[name] = ((1 + 0.1 * rng.standard_normal(shape)).astype(np.float32), QType.F32)
        else:
            std = (
                0.3 if kind == "router" else 1.0 / np.sqrt(shape[-1]) if kind == "matrix" else 0.02
            )
            made[name] = (random_weights(rng, shape, qtype, std), qtype)
    for name, value in (tensors or {}).items():
        made.pop(name, None)
        if value is not None:
            made[name] = (
                value if isinstance(value, tuple) else (np.asarray(value, np.float32), QType.F32)
            )
    meta = _metadata(arch, hp, is_moe, tokenizer)
    for key, value in (metadata or {}).items():
        meta.pop(key, None)
        if value is not None:
            meta[key] = value
    first = write_gguf(path, arch, meta, made, alignment=alignment, n_shards=n_shards)
    return Tiny(first, arch, hp, meta, made)


def write_gguf(path, arch, metadata, tensors, *, alignment=None, n_shards=1):
    """Write metadata and tensors as they are; return the path of the (first) file.

    metadata : dict   str, bool, int (UINT32; negative INT32), float (FLOAT32), list, ndarray, or
                      (value, GGUFValueType)
    tensors : dict    name -> (ndarray, GGMLQuantizationType); quantized: uint8 (*rows, row_bytes)
    """
    path = Path(path)
    per_shard = -(-len(tensors) // n_shards) if n_shards > 1 else 0
    writer = gguf.GGUFWriter(path, arch, split_max_tensors=per_shard)
    if alignment is not None:
        writer.add_custom_alignment(alignment)
    for key, value in metadata.items():
        _add(writer, key, value)
    for name, (array, qtype) in tensors.items():
        writer.add_tensor(name, np.ascontiguousarray(array), raw_dtype=qtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return (
        path.with_name(f"{path.stem}-00001-of-{len(writer.tensors):05d}.gguf")
        if n_shards > 1
        else path
    )


def _block(qtype):
    return gguf.GGML_QUANT_SIZES[QType[qtype]][0]


def _choose(name, quant, quants):
    return next((t for part, t in (quants or {}).items() if part in name), quant)


def _tensor_shapes(arch, hp, is_moe, tied, fused, tiers):
    """Rows of (name, row-major shape, kind, forced type or None), in file order."""
    e, v, d = hp["n_embd"], hp["n_vocab"], hp["head_dim"]
    q, kv = hp["n_head"] * d, hp["n_head_kv"] * d
    rows = [
        ("token_embd.weight", (v, e), "matrix", None),
        ("output_norm.weight", (e,), "norm", None),
    ]
    if not tied:
        rows.append(("output.weight", (v, e), "matrix", None))
    for il in range(hp["n_layer"]):
        layer = [("attn_norm.weight", (e,), "norm")]
        for part, n in (("q", q), ("k", kv), ("v", kv)):
            layer.append((f"attn_{part}.weight", (n, e), "matrix"))
            if arch in ("qwen2", "qwen2moe", "gpt-oss"):
                layer.append((f"attn_{part}.bias", (n,), "bias"))
        layer.append(("attn_output.weight", (e, q), "matrix"))
        if arch in ("qwen3", "qwen3moe"):
            layer += [("attn_q_norm.weight", (d,), "norm"), ("attn_k_norm.weight", (d,), "norm")]
        if arch == "olmoe":
            layer += [("attn_q_norm.weight", (q,), "norm"), ("attn_k_norm.weight", (kv,), "norm")]
        if arch == "gpt-oss":
            layer += [("attn_output.bias", (e,), "bias"), ("attn_sinks.weight", (hp["n_head"],), "norm")]
            layer.append(("post_attention_norm.weight", (e,), "norm"))
        else:
            layer.append(("ffn_norm.weight", (e,), "norm"))
        rows += [(f"blk.{il}.{name}", shape, kind, None) for name, shape, kind in layer]
        ffn = _expert_rows(arch, hp, il, fused, tiers) if is_moe else _dense_rows(e, hp["n_ff"])
        rows += [(f"blk.{il}.{name}", shape, kind, forced) for name, shape, kind, forced in ffn]
    return rows


def _dense_rows(e, g, suffix=""):
    return [
        (f"ffn_gate{suffix}.weight", (g, e), "matrix", None),
        (f"ffn_up{suffix}.weight", (g, e), "matrix", None),
        (f"ffn_down{suffix}.weight", (e, g), "matrix", None),
    ]


def _expert_rows(arch, hp, il, fused, tiers):
    e, f, x = hp["n_embd"], hp["n_ff_exp"], hp["n_expert"][il]
    rows = [("ffn_gate_inp.weight", (x, e), "router", None)]
    for i, (n, qtype) in enumerate(tiers or [(x, None)]):
        tail = "_exps" + (f"_tier{i}" if i else "")
        f_down = -(-f // _block(qtype)) * _block(qtype) if qtype else f
        if fused:
            rows.append((f"ffn_gate_up{tail}.weight", (n, 2 * f, e), "matrix", qtype))
        else:
            rows += [
                (f"ffn_{part}{tail}.weight", (n, f, e), "matrix", qtype) for part in ("gate", "up")
            ]
        rows.append((f"ffn_down{tail}.weight", (n, e, f_down), "matrix", qtype))
        if arch == "gpt-oss":
            widths = {"gate_up": 2 * f, "down": e} if fused else {"gate": f, "up": f, "down": e}
            rows += [(f"ffn_{part}{tail}.bias", (n, width), "bias", None) for part, width in widths.items()]
    if arch == "gpt-oss":
        rows.append(("ffn_gate_inp.bias", (x,), "bias", None))
    if arch == "qwen2moe":
        rows.append(("ffn_gate_inp_shexp.weight", (e,), "bias", None))
        rows += _dense_rows(e, hp["n_ff_shexp"], "_shexp")
    return rows


def _metadata(arch, hp, is_moe, tokenizer):
    meta = {
        "general.name": f"tiny {arch}",
        f"{arch}.context_length": hp["n_ctx"],
        f"{arch}.embedding_length": hp["n_embd"],
        f"{arch}.block_count": hp["n_layer"],
        f"{arch}.feed_forward_length": hp["n_ff"],
        f"{arch}.attention.head_count": hp["n_head"],
        f"{arch}.attention.head_count_kv": hp["n_head_kv"],
        f"{arch}.attention.key_length": hp["head_dim"],
        f"{arch}.attention.value_length": hp["head_dim"],
        f"{arch}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{arch}.rope.freq_base": 10000.0,
        f"{arch}.rope.dimension_count": hp["head_dim"],
        f"{arch}.vocab_size": hp["n_vocab"],
    }
    if is_moe:
        meta[f"{arch}.expert_count"] = max(hp["n_expert"])
        meta[f"{arch}.expert_used_count"] = hp["n_expert_used"]
        if arch != "llama":
            meta[f"{arch}.expert_feed_forward_length"] = hp["n_ff_exp"]
        if arch == "gpt-oss":  # a window that the tests' short texts are longer than
            meta[f"{arch}.attention.sliding_window"] = 10
            meta[f"{arch}.rope.scaling.type"] = "yarn"
            meta[f"{arch}.rope.scaling.factor"] = 32.0
            meta[f"{arch}.rope.scaling.original_context_length"] = 64
        if arch == "qwen2moe":
            meta[f"{arch}.expert_shared_feed_forward_length"] = hp["n_ff_shexp"]
    return meta | _tokenizer_metadata() if tokenizer else meta


def _byte_alphabet():
    """The 256 printable stand-ins of bytes that GPT-2's vocabulary uses, in byte order."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    spare = iter(range(0x100, 0x200))
    return [chr(b) if b in plain else chr(next(spare)) for b in range(256)]


def _vocab():
    return [*_byte_alphabet(), *(m.replace(" ", "") for m in MERGES), *SPECIAL_TOKENS]


def _tokenizer_metadata():
    vocab = _vocab()
    n_special = len(SPECIAL_TOKENS)
    first = len(vocab) - n_special
    types = [int(gguf.TokenType.NORMAL)] * first + [int(gguf.TokenType.CONTROL)] * n_special
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": vocab,
        "tokenizer.ggml.token_type": np.array(types, np.int32),
        "tokenizer.ggml.merges": list(MERGES),
        "tokenizer.ggml.bos_token_id": first,
        "tokenizer.ggml.eos_token_id": first + 2,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }


def _add(writer, key, value):
    if isinstance(value, tuple):
        writer.add_key_value(key, value[0], value[1])
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, (bool, np.bool_)):
        writer.add_bool(key, bool(value))
    elif isinstance(value, int):
        writer.add_int32(key, value) if value < 0 else writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, np.ndarray):
        vtype = gguf.GGUFValueType[
            {"f4": "FLOAT32", "f8": "FLOAT64", "b1": "BOOL"}.get(
                value.dtype.str[1:], value.dtype.name.upper()
            )
        ]
        writer.add_key_value(key, value.tolist(), gguf.GGUFValueType.ARRAY, sub_type=vtype)
    else:
        writer.add_array(key, value)
