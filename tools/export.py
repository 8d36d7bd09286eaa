"""Writes the trained and rounded model as GGUF. Run: python tools/export.py RUN_DIR/round.pt OUT.gguf [--float]"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import gguf
import numpy as np
import torch
from make_vocab import PRE
from tales.corpus import CHAT_TEMPLATE, END_OF_TEXT, IM_END
from tales.rounding import types, weight_of
from tales.torch_model import Config, TalesModel
from tokenizers import Tokenizer

NAME = "Tales"
N_CTX = 512


def write_header(writer: gguf.GGUFWriter, c: Config) -> None:
    writer.add_name(NAME)
    writer.add_description("A small mixture of experts that tells short tales; trained from a grammar.")
    writer.add_license("Apache-2.0")
    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_block_count(c.n_layer)
    writer.add_context_length(N_CTX)
    writer.add_embedding_length(c.n_embd)
    writer.add_feed_forward_length(c.n_ff_exp)
    writer.add_expert_feed_forward_length(c.n_ff_exp)
    writer.add_head_count(c.n_head)
    writer.add_head_count_kv(c.n_head_kv)
    writer.add_key_length(c.head_dim)
    writer.add_value_length(c.head_dim)
    writer.add_rope_freq_base(c.rope_base)
    writer.add_layer_norm_rms_eps(c.rms_eps)
    writer.add_expert_count(c.n_expert)
    writer.add_expert_used_count(c.n_expert_used)
    writer.add_vocab_size(c.n_vocab)


def write_tokenizer(writer: gguf.GGUFWriter, path: Path) -> None:
    tokenizer = Tokenizer.from_file(str(path))
    spec = json.loads(path.read_text())
    special = {t["id"] for t in spec["added_tokens"] if t["special"]}
    tokens = [tokenizer.id_to_token(i) for i in range(tokenizer.get_vocab_size())]
    merges = [m if isinstance(m, str) else " ".join(m) for m in spec["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(PRE)
    writer.add_token_list(tokens)
    writer.add_token_types(
        [gguf.TokenType.CONTROL if i in special else gguf.TokenType.NORMAL for i in range(len(tokens))]
    )
    writer.add_token_merges(merges)
    writer.add_eos_token_id(tokenizer.token_to_id(IM_END))
    writer.add_pad_token_id(tokenizer.token_to_id(END_OF_TEXT))
    writer.add_eot_token_id(tokenizer.token_to_id(IM_END))
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def tensor_names(c: Config) -> list[str]:
    """All weights in file order: the embedding, then layer by layer, experts last."""
    layer = ["attn_norm", "attn_q", "attn_k", "attn_v", "attn_q_norm", "attn_k_norm", "attn_output"]
    layer += ["ffn_norm", "ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"]
    return ["token_embd", *(f"blk.{il}.{n}" for il in range(c.n_layer) for n in layer), "output_norm"]


def export(checkpoint: Path, out: Path, as_float: bool) -> None:
    """`as_float`: all weights in F32, not rounded; else the bytes of the checkpoint, which are what was trained with."""
    state = torch.load(checkpoint, weights_only=False)
    model = TalesModel()
    model.load_state_dict(state["model"])
    raws, chosen = ({}, {}) if as_float else (state["frozen"], types(model.c))
    assert raws.keys() == chosen.keys(), "the checkpoint is not finished: some weights are not rounded yet"
    writer = gguf.GGUFWriter(out, "qwen3moe")
    write_header(writer, model.c)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32 if as_float else gguf.LlamaFileType.MOSTLY_IQ2_XXS)
    write_tokenizer(writer, checkpoint.parent / "tokenizer.json")
    for name in tensor_names(model.c):
        if name in raws:
            writer.add_tensor(f"{name}.weight", raws[name], raw_dtype=chosen[name])
        else:
            writer.add_tensor(f"{name}.weight", np.ascontiguousarray(weight_of(model, name).detach().float().numpy()))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--float", action="store_true", dest="as_float")
    args = parser.parse_args()
    export(args.checkpoint, args.out, args.as_float)
