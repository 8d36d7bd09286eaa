"""Trains the shipped model. Run: python tools/train.py RUN_DIR --stage float (then --stage round, see README.md).

RUN_DIR holds tokenizer.json and the checkpoints. A stage that was stopped goes on from its last checkpoint;
data come from the seed and the step number alone, so a stopped and resumed run sees the same batches.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from gguf import GGMLQuantizationType as Q
from tales import rules
from tales.corpus import END_OF_TEXT, write_document
from tales.rounding import importance, rounded, substitutes, types, weight_of
from tales.torch_model import Config, TalesModel
from tokenizers import Tokenizer

SEED = 20240
N_ROWS, N_TOKENS = 12, 128  # of one worker; a tale has some 90 tokens
SAVE_EVERY = 100  # steps


def batch(tokenizer: Tokenizer, seed: int, rows: int = N_ROWS, tokens: int = N_TOKENS) -> torch.Tensor:
    """int64 (rows, tokens + 1); each row begins with a document and is filled with further ones, the last cut off."""
    rng = random.Random(seed)
    out = []
    for _ in range(rows):
        ids: list[int] = []
        while len(ids) <= tokens:
            ids += tokenizer.encode(write_document(rng)).ids
        out.append(ids[: tokens + 1])
    return torch.tensor(out)


def cast_tokens(tokenizer: Tokenizer) -> torch.Tensor:
    """bool (n_vocab,): tokens of words that a tale has to keep (names, places, things, numbers, pronouns, ...)."""
    words = [w for slot, ws in rules.BOUND.items() if slot not in ("trait", "mood") for w in ws]
    words += rules.GIRLS + rules.BOYS + rules.NUMBERS + [w for pair in rules.PRONOUNS.values() for w in pair]
    words += [
        a + b + c for a in rules.NAME_STARTS for b in rules.NAME_MIDDLES[:6] for c in rules.GIRL_ENDS + rules.BOY_ENDS
    ]
    ids = {i for w in words for i in tokenizer.encode(" " + w).ids}
    mask = torch.zeros(tokenizer.get_vocab_size(), dtype=torch.bool)
    mask[list(ids - {tokenizer.token_to_id("Ġthe"), tokenizer.token_to_id("Ġ")})] = True
    return mask


def copy_weights(x: torch.Tensor, is_cast: torch.Tensor, end: int, weight: float) -> torch.Tensor:
    """float32 (rows, tokens): `weight` for a target that repeats a cast token of its own document, else 1.

    Most of the loss is free choice that no model can predict; this makes the part that can be learnt be heard.
    """
    document = (x == end).cumsum(1)
    same = (x[:, :, None] == x[:, None, :]) & (document[:, :, None] == document[:, None, :])
    repeated = torch.tril(same, -1).any(2)
    return torch.where(repeated & is_cast[x], weight, 1.0)[:, 1:]


def learning_rate(step: int, steps: int, peak: float, warm: int = 60, floor: float = 0.02) -> float:
    """Linear warm-up, then a cosine down to `floor` of the peak."""
    if step < warm:
        return peak * (step + 1) / warm
    return peak * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm))))


def optimizer_for(model: TalesModel, names=None) -> torch.optim.AdamW:
    """AdamW; weight decay on matrices only. `names`: train these parameters alone."""
    chosen = [(n, p) for n, p in model.named_parameters() if names is None or n in names]
    groups = [
        {"params": [p for _, p in chosen if p.dim() > 1], "weight_decay": 0.05},
        {"params": [p for _, p in chosen if p.dim() == 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-9, fused=True)


@torch.no_grad()
def evaluate(model: TalesModel, tokenizer: Tokenizer, batches: int = 6) -> tuple[float, torch.Tensor]:
    """(nats a token, expert shares (n_layer, n_expert)) on documents that no training step sees."""
    loss, shares = 0.0, 0.0
    for i in range(batches):
        x = batch(tokenizer, -1 - i, 8, 256)
        logits, _, share = model(x[:, :-1])
        loss += F.cross_entropy(logits.flatten(0, 1), x[:, 1:].flatten()).item() / batches
        shares = shares + share / batches
    return loss, shares


def save(path: Path, **state) -> None:
    temporary = path.with_suffix(".part")
    torch.save(state, temporary)
    os.replace(temporary, path)


class Team:
    """Workers that share a batch: each computes the gradient of its rows, then all take the mean and the same step.

    One thread a worker: with two threads an op the threads wait for each other hundreds of times a step, which
    on a busy machine takes most of the time.
    """

    def __init__(self, n_workers: int, n_weights: int):
        self.n_workers = n_workers
        self.gradients = torch.zeros(n_workers, n_weights).share_memory_()
        self.barrier = torch.multiprocessing.get_context("spawn").Barrier(n_workers)

    def share(self, worker: int, parameters: list[torch.Tensor]) -> None:
        if self.n_workers == 1:
            return
        flat = torch.cat([(p.grad if p.grad is not None else torch.zeros_like(p)).flatten() for p in parameters])
        self.gradients[worker, : len(flat)] = flat
        self.barrier.wait()
        mean, at = self.gradients[:, : len(flat)].mean(0), 0
        for p in parameters:
            p.grad = mean[at : at + p.numel()].view_as(p)
            at += p.numel()
        self.barrier.wait()


def train_step(
    model, optimizer, x: torch.Tensor, rate: float, team: Team, worker: int, weights=None, balance_weight: float = 0.02
) -> torch.Tensor:
    """One step on this worker's rows; returns the unweighted losses of its tokens, nats, float32 (rows * tokens,)."""
    for group in optimizer.param_groups:
        group["lr"] = rate
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits, balance, _ = model(x[:, :-1])
    losses = F.cross_entropy(logits.flatten(0, 1), x[:, 1:].flatten(), reduction="none")
    loss = losses.mean() if weights is None else (losses * weights.flatten()).sum() / weights.sum()
    optimizer.zero_grad()
    (loss + balance_weight * balance).backward()
    parameters = [p for g in optimizer.param_groups for p in g["params"]]
    team.share(worker, parameters)
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    optimizer.step()
    return losses.detach()


def run_float(worker: int, team: Team, args: argparse.Namespace) -> None:
    """The float model, from random weights."""
    torch.set_num_threads(1)
    os.setsid()  # a scheduling group of its own: fair to the other worker
    run, steps, tokenizer = args.run, args.steps, Tokenizer.from_file(str(args.run / "tokenizer.json"))
    is_cast, end = cast_tokens(tokenizer), tokenizer.token_to_id(END_OF_TEXT)
    torch.manual_seed(SEED)
    model = TalesModel(Config(n_vocab=tokenizer.get_vocab_size()))
    optimizer = optimizer_for(model)
    path, first = run / "float.pt", 0
    if path.exists():
        state = torch.load(path)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"]
    start, recent = time.time(), []
    for step in range(first, args.until or steps):
        x = batch(tokenizer, SEED + step * team.n_workers + worker)
        # The last part of the training sees the plain loss, so that probabilities come out right.
        weights = copy_weights(x, is_cast, end, 5.0) if step < steps * 0.75 else None
        recent.append(
            train_step(model, optimizer, x, learning_rate(step, steps, args.rate), team, worker, weights).mean().item()
        )
        if worker:
            continue
        if (step + 1) % 50 == 0:
            report(run, "float", step + 1, sum(recent) / len(recent), start)
            recent = []
        if (step + 1) % SAVE_EVERY == 0 or step + 1 == (args.until or steps):
            loss, shares = evaluate(model, tokenizer)
            report(run, "float-eval", step + 1, loss, start, least_share=shares.min().item())
            save(path, model=model.state_dict(), optimizer=optimizer.state_dict(), step=step + 1, loss=loss)


def run_round(worker: int, team: Team, args: argparse.Namespace) -> None:
    """Rounds the float model and trains on around the rounded weights.

    The expert banks are rounded once, with the real quantizers, and stand still from then on; attention,
    embedding, routers and norms adapt to them. For the last eighth of the steps the 8-bit weights stand
    still too. The bytes in `frozen` are what is exported.
    """
    torch.set_num_threads(1)
    os.setsid()
    run, steps, tokenizer = args.run, args.steps, Tokenizer.from_file(str(args.run / "tokenizer.json"))
    is_cast, end = cast_tokens(tokenizer), tokenizer.token_to_id(END_OF_TEXT)
    state = torch.load(run / "float.pt")
    model = TalesModel(Config(n_vocab=tokenizer.get_vocab_size()))
    model.load_state_dict(state["model"])
    chosen, frozen, first = types(model.c), {}, 0
    path, last_start = run / "round.pt", steps * 7 // 8
    if path.exists():
        state = torch.load(path, weights_only=False)
        model.load_state_dict(state["model"])
        frozen, first = state["frozen"], state["step"]
    else:
        freeze(model, tokenizer, chosen, frozen, {Q.IQ2_XXS, Q.Q4_K})
    optimizer = settle(model, chosen, frozen)
    if path.exists() and first != last_start:
        optimizer.load_state_dict(state["optimizer"])
    start, recent = time.time(), []
    for step in range(first, args.until or steps):
        if step == last_start:
            freeze(model, tokenizer, chosen, frozen, {Q.Q8_0})
            optimizer = settle(model, chosen, frozen)
        x = batch(tokenizer, 3 * SEED + step * team.n_workers + worker, 6, 256)
        weights = copy_weights(x, is_cast, end, 3.0) if step < steps // 2 else None
        rate = learning_rate(step, steps, args.rate, warm=10)
        recent.append(train_step(model, optimizer, x, rate, team, worker, weights).mean().item())
        if worker:
            continue
        if (step + 1) % 20 == 0 or step + 1 in (last_start, args.until or steps):
            loss, shares = evaluate(model, tokenizer)
            report(
                run,
                "round",
                step + 1,
                sum(recent) / len(recent),
                start,
                rounded=round(loss, 4),
                least_share=round(shares.min().item(), 4),
            )
            recent = []
            save(
                path,
                model=model.state_dict(),
                optimizer=optimizer.state_dict(),
                step=step + 1,
                frozen=frozen,
                loss=loss,
            )


def freeze(model: TalesModel, tokenizer: Tokenizer, chosen: dict, frozen: dict, qtypes: set) -> None:
    """Rounds the weights of these types and puts their bytes into `frozen`."""
    means = importance(model, [batch(tokenizer, SEED - 1, 24, 256)[:, :-1]])
    frozen.update(rounded(model, {n: q for n, q in chosen.items() if q in qtypes}, means))


def settle(model: TalesModel, chosen: dict, frozen: dict) -> torch.optim.AdamW:
    """Puts the frozen bytes' values into the model; the optimizer moves only the rest."""
    with torch.no_grad():
        for name, values in substitutes(frozen, chosen).items():
            weight_of(model, name).copy_(values).requires_grad_(False)
    return optimizer_for(model, {n for n, p in model.named_parameters() if p.requires_grad})


def run_copy(worker: int, team: Team, args: argparse.Namespace) -> None:
    """Attention, norms and embedding learn to copy the cast; the experts stand still, so steps are short and many."""
    torch.set_num_threads(1)
    os.setsid()
    run, steps, tokenizer = args.run, args.steps, Tokenizer.from_file(str(args.run / "tokenizer.json"))
    is_cast, end = cast_tokens(tokenizer), tokenizer.token_to_id(END_OF_TEXT)
    model = TalesModel(Config(n_vocab=tokenizer.get_vocab_size()))
    path, first = run / "float.pt", 0
    state = torch.load(path)
    model.load_state_dict(state["model"])
    for name, p in model.named_parameters():
        p.requires_grad_("ffn_" not in name)
    optimizer = optimizer_for(model, {n for n, p in model.named_parameters() if p.requires_grad})
    if "copy_optimizer" in state:
        optimizer.load_state_dict(state["copy_optimizer"])
        first = state["copy_step"]
    start, recent, copied = time.time(), [], []
    for step in range(first, args.until or steps):
        x = batch(tokenizer, 7 * SEED + step * team.n_workers + worker, 6)
        weights = copy_weights(x, is_cast, end, 8.0)
        losses = train_step(
            model, optimizer, x, learning_rate(step, steps, args.rate, floor=0.3), team, worker, weights, 0.0
        )
        recent.append(losses.mean().item())
        copied.append(losses[weights.flatten() > 1].mean().item())
        if worker == 0 and (step + 1) % 25 == 0:
            report(run, "copy", step + 1, sum(recent) / len(recent), start, copied=round(sum(copied) / len(copied), 4))
            recent, copied = [], []
        if worker == 0 and ((step + 1) % 100 == 0 or step + 1 == steps):
            save(
                path,
                **(state | dict(model=model.state_dict(), copy_optimizer=optimizer.state_dict(), copy_step=step + 1)),
            )


def report(run: Path, stage: str, step: int, loss: float, start: float, **more) -> None:
    row = {"stage": stage, "step": step, "loss": round(loss, 4), "seconds": round(time.time() - start, 1), **more}
    with open(run / "log.jsonl", "a") as log:
        log.write(json.dumps(row) + "\n")
    print(row, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--stage", choices=["copy", "float", "round"], required=True)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--until", type=int, help="stop at this step of the schedule")
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    n_weights = sum(p.numel() for p in TalesModel().parameters())
    stage = {"copy": run_copy, "float": run_float, "round": run_round}[args.stage]
    torch.multiprocessing.spawn(stage, (Team(args.workers, n_weights), args), args.workers)


if __name__ == "__main__":
    main()
