"""Measures the shipped model: do its tales parse, does the hero stay, do all experts work, what does rounding cost.

Run: python tools/measure_model.py MODEL.gguf [--float CHECKPOINT.pt] [--engine]

Texts come from PyTorch with the file's own (dequantized) weights, or with --engine from moeengine itself.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

import gguf
import numpy as np
import torch
import torch.nn.functional as F
from gguf import quants
from make_vocab import SPLIT
from tales.corpus import END_OF_TEXT, IM_END, IM_START, documents
from tales.grammar import draw_cast, read_tale
from tales.rounding import importance, rounded, substitutes, types, weight_of
from tales.sampling import sample
from tales.torch_model import Config, TalesModel
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from train import batch

N_TALES, TEMPERATURE, SEED = 200, 0.8, 7


def load(path: Path) -> tuple[TalesModel, Tokenizer]:
    """The training model with the weights that the file's bytes stand for, and the file's tokenizer."""
    reader = gguf.GGUFReader(path)
    field = {k: f.contents() for k, f in reader.fields.items() if k.startswith(("qwen3moe.", "tokenizer."))}
    c = Config(
        n_vocab=len(field["tokenizer.ggml.tokens"]),
        n_layer=field["qwen3moe.block_count"],
        n_expert=field["qwen3moe.expert_count"],
        n_expert_used=field["qwen3moe.expert_used_count"],
    )
    model = TalesModel(c)
    with torch.no_grad():
        for tensor in reader.tensors:
            values = quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
            weight = weight_of(model, tensor.name.removesuffix(".weight"))
            weight.copy_(torch.from_numpy(values.copy()).view_as(weight))
    return model, _tokenizer(field)


def _tokenizer(field: dict) -> Tokenizer:
    tokens = field["tokenizer.ggml.tokens"]
    merges = [tuple(m.split(" ")) for m in field["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([END_OF_TEXT, IM_START, IM_END])
    return tokenizer


def prompts(n: int) -> list[tuple[str, str | None]]:
    """(prompt, hero asked for): half the words that begin a tale, half a chat that asks for one."""
    rng = random.Random(SEED)
    openings = ["Once upon a time", "Once upon a time", "Long ago", "There was once", "Once", "In a"]
    out: list[tuple[str, str | None]] = [(openings[i % len(openings)], None) for i in range(n // 2)]
    for _ in range(n - n // 2):
        cast = draw_cast(rng)
        ask = f"Tell me a tale about {cast['hero']} and {cast['place']}."
        out.append((f"{IM_START}user\n{ask}{IM_END}\n{IM_START}assistant\n", cast["hero"]))
    return out


def texts_of_torch(model: TalesModel, tokenizer: Tokenizer) -> list[tuple[str, str | None]]:
    asked = prompts(N_TALES)
    stop = {tokenizer.token_to_id(END_OF_TEXT), tokenizer.token_to_id(IM_END)}
    ids = [tokenizer.encode(p).ids for p, _ in asked]
    out = sample(model, ids, stop, temperature=TEMPERATURE, seed=SEED)
    pairs = zip(asked, out, strict=True)
    return [((prompt if hero is None else "") + tokenizer.decode(o), hero) for (prompt, hero), o in pairs]


def texts_of_engine(path: Path) -> list[tuple[str, str | None]]:
    from moeengine import Engine

    texts = []
    with Engine(path, n_ctx=512) as engine:
        for i, (prompt, hero) in enumerate(prompts(N_TALES)):
            ids = engine.tokenize(prompt, add_special=False, parse_special=True)
            text = engine.generate(ids, max_tokens=260, temperature=TEMPERATURE, top_k=0, top_p=1.0, min_p=0.0, seed=SEED + i)
            texts.append(((prompt if hero is None else "") + text, hero))
    return texts


def judge(texts: list[tuple[str, str | None]]) -> dict:
    """Shares of sentences that parse, of tales that keep hero and cast, of chats that use the asked name."""
    readings = [(read_tale(text), hero) for text, hero in texts]
    parsed = [p for r, _ in readings for p in r.parsed]
    asked = [(r, hero) for r, hero in readings if hero]
    lengths = [len(r.sentences) for r, _ in readings]
    return {
        "tales": len(texts),
        "sentences": len(parsed),
        "sentences_parsed": np.mean(parsed),
        "sentences_sound": np.mean([s for r, _ in readings for s in r.sound]),
        "hero_kept": np.mean([r.hero_kept for r, _ in readings]),
        "cast_kept": np.mean([r.cast_kept for r, _ in readings]),
        "asked_hero_used": np.mean([r.hero == hero for r, hero in asked]),
        "distinct_tales": len({t for t, _ in texts}) / len(texts),
        "sentences_a_tale": [min(lengths), float(np.mean(lengths)), max(lengths)],
    }


@torch.no_grad()
def nats_and_shares(model: TalesModel, tokenizer: Tokenizer, n: int = 400) -> tuple[float, torch.Tensor]:
    """(nats a token on unseen documents, share of the slots that each expert gets, (n_layer, n_expert))."""
    ids = [i for d in documents(-99, n) for i in tokenizer.encode(d).ids]
    rows = torch.tensor(ids[: len(ids) // 257 * 257]).view(-1, 257)
    total, shares = 0.0, 0.0
    for part in rows.split(16):
        logits, _, share = model(part[:, :-1])
        total += F.cross_entropy(logits.flatten(0, 1), part[:, 1:].flatten(), reduction="sum").item()
        shares = shares + share * len(part) / len(rows)
    return total / (len(rows) * 256), shares


def _cost_of_rounding_alone(model: TalesModel, tokenizer: Tokenizer, float_nats: float) -> float:
    """What rounding costs when nothing is trained around it, nats a token. Leaves the rounded weights in `model`."""
    chosen = types(model.c)
    means = importance(model, [batch(tokenizer, 1, 24, 256)[:, :-1]])
    with torch.no_grad():
        for name, values in substitutes(rounded(model, chosen, means), chosen).items():
            weight_of(model, name).copy_(values)
    return nats_and_shares(model, tokenizer)[0] - float_nats


@torch.no_grad()
def shares_on(model: TalesModel, tokenizer: Tokenizer, texts: list[str]) -> torch.Tensor:
    """Share of the slots of each expert, (n_layer, n_expert), on the model's own tales."""
    ids = [i for t in texts for i in tokenizer.encode(t + END_OF_TEXT).ids]
    rows = torch.tensor(ids[: len(ids) // 256 * 256]).view(-1, 256)
    return torch.stack([model(part)[2] * len(part) / len(rows) for part in rows.split(16)]).sum(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument(
        "--float", type=Path, dest="float_checkpoint", help="checkpoint with the float weights to compare with"
    )
    parser.add_argument("--engine", action="store_true")
    parser.add_argument("--show", type=int, default=0, help="print so many tales")
    args = parser.parse_args()
    torch.set_num_threads(1)
    model, tokenizer = load(args.model)
    texts = texts_of_engine(args.model) if args.engine else texts_of_torch(model, tokenizer)
    figures = judge(texts) | {"file_mb": args.model.stat().st_size / 1e6}
    nats, _ = nats_and_shares(model, tokenizer)
    shares = shares_on(model, tokenizer, [t for t, _ in texts])
    figures |= {
        "nats_a_token": nats,
        "least_expert_share": shares.min().item(),
        "largest_expert_share": shares.max().item(),
    }
    if args.float_checkpoint:
        state = torch.load(args.float_checkpoint, weights_only=False)
        float_model = TalesModel(model.c)
        float_model.load_state_dict(state["model"])
        figures["float_nats_a_token"] = nats_and_shares(float_model, tokenizer)[0]
        figures["rounding_cost_nats"] = nats - figures["float_nats_a_token"]
        figures["rounding_alone_cost_nats"] = _cost_of_rounding_alone(float_model, tokenizer, figures["float_nats_a_token"])
    for text, _ in texts[:: max(1, len(texts) // max(1, args.show))][: args.show]:
        print(text, "\n")
    print(json.dumps({k: round(v, 4) if isinstance(v, float) else v for k, v in figures.items()}, indent=1))


if __name__ == "__main__":
    main()
