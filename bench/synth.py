"""Write a GGUF file of a real model's shape with random weights.

    python -m bench.synth OUT.gguf [--preset qwen3-30b-a3b] [--layers 8] [--mix iq2_xxs|q4_k_m|TYPE]

Memory stays flat whatever the size of the file. The same arguments give the same bytes.
"""

import argparse
import dataclasses
import sys
import time
import zlib

import gguf
import numpy as np

from bench.mixes import MIXES, tensor_type
from bench.random_blocks import random_blocks
from bench.random_vocab import add_random_vocab, copy_vocab
from bench.shapes import PRESETS, Shape, Tensor, add_metadata, tensors

CHUNK_BYTES = 8 << 20
# Standard deviation times sqrt(columns). Branch outputs weigh more than 1, so that every layer
# moves the logits; the embedding is an absolute figure.
GAIN = {"attn_output": 3.0, "ffn_down_exps": 3.0, "ffn_down_shexp": 3.0, "ffn_gate_inp": 1.5}
TOKEN_EMBD_STD = 0.5
# Mean of the final norm's weight = standard deviation of the logits: a spread like a trained
# model's, so that KL and arg-max mean something.
OUTPUT_NORM_MEAN = 3.0


def synthesize(path: str, s: Shape, mix: str, seed: int = 1, vocab_from: str | None = None, weights=None, gain=GAIN) -> int:
    """Write the file and return its size in bytes.

    weights : function (tensor, rng) -> float32 array, or None where its weights are random; what it gives is written as F32
    gain : dict role -> standard deviation times sqrt(columns)

    Raises
    ------
    KeyError     `mix` is unknown
    ValueError   the vocabulary is too small
    """
    writer = gguf.GGUFWriter(path, s.arch)
    add_metadata(writer, s)
    if vocab_from:
        copy_vocab(writer, vocab_from)
    else:
        add_random_vocab(writer, s.n_vocab, seed)
    plan = []
    for tensor in tensors(s):
        rng = np.random.Generator(np.random.SFC64([seed, zlib.crc32(tensor.name.encode())]))
        given = weights(tensor, rng) if weights else None
        plan.append((tensor, tensor_type(mix, tensor, s) if given is None else gguf.GGMLQuantizationType.F32, rng, given))
    for tensor, qtype, _, _ in plan:
        block, block_bytes = gguf.GGML_QUANT_SIZES[qtype]
        n_bytes = int(np.prod(tensor.shape)) // block * block_bytes
        writer.add_tensor_info(tensor.name, tensor.shape, np.dtype(np.float32), n_bytes, qtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    out = writer.fout[0]
    writer.write_padding(out, out.tell())
    for tensor, qtype, rng, given in plan:
        for chunk in _data(tensor, qtype, rng, gain) if given is None else (given.data,):
            out.write(chunk)
        writer.write_padding(out, out.tell())
    size = out.tell()
    writer.close()
    return size


def _data(tensor: Tensor, qtype, rng, gain):
    """Yield the tensor's bytes in chunks of whole blocks."""
    n = int(np.prod(tensor.shape))
    if "norm" in tensor.role:
        mean = OUTPUT_NORM_MEAN if tensor.role == "output_norm" else 1.0
        yield (mean * (1 + 0.1 * rng.standard_normal(n, np.float32))).astype(np.float32).data
        return
    if tensor.role == "ssm_a":  # a state forgets half of what it knows within one to some twenty tokens
        yield (-np.exp(rng.uniform(-3, 0, n))).astype(np.float32).data
        return
    if tensor.role == "token_embd":
        std = TOKEN_EMBD_STD
    else:
        std = gain.get(tensor.role, 1.0) / np.sqrt(tensor.shape[-1])
    block, block_bytes = gguf.GGML_QUANT_SIZES[qtype]
    left, step = n // block, max(1, CHUNK_BYTES // block_bytes)
    while left:
        yield random_blocks(qtype, min(left, step), std, rng).data
        left -= min(left, step)


def _arguments() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("out")
    p.add_argument("--preset", choices=PRESETS, default="qwen3-30b-a3b", help="default %(default)s")
    p.add_argument(
        "--mix", default="iq2_xxs", help=f"{', '.join(MIXES)} or one type (default %(default)s)"
    )
    p.add_argument("--layers", type=int, help="default: the preset's")
    p.add_argument("--experts", type=int, help="default: the preset's")
    p.add_argument("--vocab", type=int, help="vocabulary size (default: the preset's)")
    p.add_argument("--vocab-from", metavar="GGUF", help="copy the tokenizer of this file")
    p.add_argument("--ctx", type=int, help="trained context length (default: the preset's)")
    p.add_argument("--seed", type=int, default=1, help="default %(default)s")
    return p


def main(argv=None) -> int:
    a = _arguments().parse_args(argv)
    given = {"n_layer": a.layers, "n_expert": a.experts, "n_vocab": a.vocab, "n_ctx_train": a.ctx}
    s = dataclasses.replace(PRESETS[a.preset], **{k: v for k, v in given.items() if v})
    start = time.perf_counter()
    size = synthesize(a.out, s, a.mix, a.seed, a.vocab_from)
    print(f"{a.out}: {size / 1e9:.2f} GB in {time.perf_counter() - start:.1f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
