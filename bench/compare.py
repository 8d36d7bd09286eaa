"""moeengine and its peers on the same file, in turn, round after round.

    python -m bench.compare MODEL.gguf --stock PATH [--ik PATH] [--prefill 512 4096] [--decode 64]

A ratio is the median over rounds of ours / peer in the same round, so that a slow minute of the
machine hits both sides. "others" is the share of the machine that other processes took meanwhile.
"""

import argparse
import contextlib
import os
import sys
import tempfile
from statistics import median

import numpy as np

from bench import peers, report
from bench.machine import QUIET_SHARE, wait_quiet

CHECK_TOKENS = 32


def main(argv=None) -> int:
    a = _arguments().parse_args(argv)
    taking_part = _peers(a)
    n_ctx = max(a.prefill + [d + a.decode for d in a.depth] + [CHECK_TOKENS + a.greedy]) + 8
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(p.start()) for p in taking_part]
        for peer, client in zip(taking_part, clients):
            options = getattr(peer, "options", {})
            n_vocab = client.do("load", path=a.model, n_ctx=n_ctx, n_threads=a.threads, **options)
            a.n_vocab = min(n_vocab or a.n_vocab, a.n_vocab)
        if a.check:
            _check(clients, a)
        rows = []
        for n in a.prefill:
            rows += _measure(clients, f"prefill {n}", n, "prefill", _tokens(n, a), a)
        for depth in a.depth:
            if depth or a.decode:
                for client in clients:
                    client.do("fill", tokens=_tokens(max(depth, 1), a))
            if a.decode:
                tokens = _tokens(a.decode, a, seed=5)
                rows += _measure(clients, f"decode at {depth}", a.decode, "decode", tokens, a)
        for client in clients:
            info = client.do("info")
            print(f"{client.name}: {info['version']}, peak {info['peak_bytes'] / 1e6:.0f} MB resident")
    if a.csv:
        report.append_csv(a.csv, rows)
    return 0


def _peers(a):
    found = []
    if not a.without_ours:
        options = dict(option.split("=", 1) for option in a.option)
        found.append(peers.ours(isa=a.isa, **{k: _number(v) for k, v in options.items()}))
    if a.stock:
        found.append(peers.stock(a.stock))
    if a.ik:
        found.append(peers.stock(a.ik, ik=True))
    if not found:
        sys.exit("nothing to measure: give --stock or leave out --without-ours")
    return found


def _number(text):
    return int(text) if text.lstrip("-").isdigit() else text


def _tokens(n, a, seed=3):
    """`n` ids, the same in every run: random text routes more evenly than real text does."""
    return np.random.default_rng(seed).integers(0, a.n_vocab, n).tolist()


def _measure(clients, name, n, command, tokens, a):
    """Time one command in interleaved rounds, print a line a peer, return the CSV rows."""
    for client in clients:  # first touch of pages, threads and buffers is not on the clock
        client.do(command, tokens=tokens[: max(16, len(tokens) // 4)])
    speed = {client.name: [] for client in clients}
    others = []
    for i in range(a.rounds):
        if a.wait_quiet:
            wait_quiet(QUIET_SHARE, a.wait_quiet)
        for client in clients[i % len(clients) :] + clients[: i % len(clients)]:
            speed[client.name].append(n / client.do(command, tokens=tokens))
            others.append(client.others)
    rows, ours = [], speed[clients[0].name]
    for client in clients:
        values = speed[client.name]
        line = f"{name:16s} {client.name:10s} {median(values):8.1f} tok/s  best {max(values):8.1f}"
        line += f"  spread {100 * report.spread(values):3.0f} %"
        ratio = None
        if client is not clients[0]:
            ratio = report.ratios(ours, values)
            line += "  ratio {median:.2f} ({low:.2f}..{high:.2f})".format(**ratio)
        print(line + f"  others {100 * median(others):.0f} %", flush=True)
        rows.append({
            "engine": client.name, "threads": a.threads, "file": os.path.basename(a.model),
            "mix": a.mix, "test": name, "rounds": a.rounds, "median": f"{median(values):.2f}",
            "best": f"{max(values):.2f}", "spread": f"{report.spread(values):.3f}", "unit": "tok/s",
            "ratio": f"{ratio['median']:.3f}" if ratio else "", "others": f"{median(others):.2f}",
        })  # fmt: skip
    return rows


def _check(clients, a):
    """Compare logits and greedy tokens of the first engine with each other one.

    Each engine is also compared with itself, whole prompt against one token at a time: random
    weights enlarge a last-bit difference, and no two engines can be closer than one is to itself.
    """
    tokens = _tokens(CHECK_TOKENS, a, seed=11)
    whole, single = ([_logits(c, tokens, ubatch) for c in clients] for ubatch in (None, 1))
    for client, x, y in zip(clients, whole, single):
        print(f"{client.name} whole against one by one: {_words(difference(x, y))}")
    texts = [client.do("greedy", tokens=tokens[:8], n=a.greedy) for client in clients]
    for client, theirs, text in zip(clients[1:], whole[1:], texts[1:]):
        same = next((i for i, (x, y) in enumerate(zip(texts[0], text)) if x != y), a.greedy)
        print(
            f"{clients[0].name} against {client.name}: {_words(difference(theirs, whole[0]))}; "
            f"first {same} of {a.greedy} greedy tokens equal"
        )


def _logits(client, tokens, ubatch):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "logits.npy")
        client.do("logits", tokens=tokens, save_to=path, ubatch=ubatch)
        return np.load(path)


def _words(d) -> str:
    return (
        f"KL median {d['kl_median']:.1e} max {d['kl_max']:.1e}, NMSE max {d['nmse_max']:.1e}, "
        f"same arg-max {100 * d['same_argmax']:.0f} %"
    )


def difference(ref, got) -> dict[str, float]:
    """How far `got` is from `ref`, both float32 (T, V) logits.

    Returns kl_median and kl_max (nat, KL(ref || got) a position), nmse_max (squared error over the
    variance of ref) and same_argmax (share of positions).
    """
    p, q = _log_softmax(ref), _log_softmax(got)
    kl = (np.exp(p) * (p - q)).sum(-1)
    nmse = ((ref - got).astype(np.float64) ** 2).mean(-1) / ref.astype(np.float64).var(-1)
    return {
        "kl_median": float(np.median(kl)), "kl_max": float(kl.max()), "nmse_max": float(nmse.max()),
        "same_argmax": float((ref.argmax(-1) == got.argmax(-1)).mean()),
    }  # fmt: skip


def _log_softmax(x):
    x = x.astype(np.float64)
    x -= x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def _arguments() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("model")
    p.add_argument("--stock", metavar="PATH", help="Python, venv or llama.cpp build to measure against")
    p.add_argument("--ik", metavar="PATH", help="Python or venv with ik-llama-cpp-python")
    p.add_argument("--without-ours", action="store_true", help="measure the peers alone")
    p.add_argument("--threads", type=int, default=2, help="default %(default)s")
    p.add_argument("--rounds", type=int, default=5, help="default %(default)s")
    p.add_argument("--prefill", type=int, nargs="*", default=[512], metavar="N", help="default 512")
    p.add_argument("--decode", type=int, default=64, metavar="N", help="0 = none; default %(default)s")
    p.add_argument("--depth", type=int, nargs="*", default=[0], metavar="N", help="default 0")
    p.add_argument("--check", action="store_true", help="compare logits and greedy tokens first")
    p.add_argument("--greedy", type=int, default=16, metavar="N", help="default %(default)s")
    p.add_argument("--isa", help="force moeengine's instruction set")
    p.add_argument("--option", action="append", default=[], metavar="KEY=VALUE", help="for Engine")
    p.add_argument(
        "--wait-quiet", type=float, default=0, metavar="S",
        help="before each round wait up to S seconds for other processes to be idle",
    )  # fmt: skip
    p.add_argument("--csv", metavar="FILE", help="append the rows")
    p.add_argument("--mix", default="", help="name of the quant mix, for the CSV")
    p.set_defaults(n_vocab=1 << 30)
    return p


if __name__ == "__main__":
    sys.exit(main())
