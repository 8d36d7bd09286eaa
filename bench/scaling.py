"""What many threads would wait for: units of work of every step of a pass, and barriers, counted.

    python -m bench.scaling MODEL.gguf [--threads 64] [--tokens 1 512]

Units come from the model's sizes and the rules of graph/block.pyx (row_chunk, x_chunk); barriers are counted in
a real pass with that many threads, whatever the machine has.
"""

import argparse
import re
from pathlib import Path

import moeengine
from moeengine import Engine
from moeengine.graph.moe_ffn import GROUP_PAIRS

PACKAGE = Path(moeengine.__file__).parent


def constant(file, name):
    """The number that a source of the package gives to `name`: in an enum, or with #define."""
    return int(re.search(rf"^\s*(?:#define\s+)?{name}\s*=?\s*(\d+)", (PACKAGE / file).read_text(), re.M)[1])


ROW_CHUNK, ONE_X_ROW_CHUNK, LEAST_ROW_CHUNK, UNITS_A_THREAD, X_ROWS = (
    constant("graph/block.pxd", name)
    for name in ("ROW_CHUNK", "ONE_X_ROW_CHUNK", "LEAST_ROW_CHUNK", "UNITS_A_THREAD", "X_CHUNK_ROWS")
)
SPLIT_TOKENS, Q_ROWS = (constant("graph/attention.pxd", name) for name in ("SPLIT_TOKENS", "Q_ROWS"))
SEGMENT = constant("kernels/csrc/moe_table.h", "MOE_KV_SEGMENT")


def units(n_rows, n_threads, n_x=1):
    """Units of work of a product with n_rows weight rows and n_x activation rows."""
    n_xc, chunk = -(-n_x // X_ROWS), ONE_X_ROW_CHUNK if n_x == 1 else ROW_CHUNK
    while chunk > LEAST_ROW_CHUNK and n_rows * n_xc < UNITS_A_THREAD * n_threads * chunk:
        chunk //= 2
    return -(-n_rows // chunk) * n_xc


def steps(hp, n_ff, n_tokens, n_threads, n_past):
    """(step, units) of the last layer."""
    n_head, n_head_kv, n_expert = (v if isinstance(v, int) else v[-1] for v in (hp.n_head, hp.n_head_kv, hp.n_expert))
    heads = (n_head + 2 * n_head_kv) * hp.head_dim_k
    experts = min(n_expert, n_tokens * hp.n_expert_used)
    in_group = max(1, min(experts, GROUP_PAIRS * experts // (n_tokens * hp.n_expert_used)))
    if n_tokens <= SPLIT_TOKENS:
        attention = n_tokens * n_head_kv * -(-(n_past + n_tokens) // SEGMENT)
    else:
        attention = n_head_kv * -(-n_tokens * n_head // n_head_kv // Q_ROWS)
    return [
        ("norm and quantize", n_tokens),
        ("q, k, v", units(heads, n_threads, n_tokens)),
        ("attention", attention),
        ("attention output", units(hp.n_embd, n_threads, n_tokens)),
        ("router", units(n_expert, n_threads, n_tokens)),
        (f"gate and up, {in_group} experts", units(n_ff * in_group, n_threads, min(n_tokens, 2))),
        ("down and sum", units(hp.n_embd, n_threads, min(n_tokens, 2))),
    ]


def count_barriers(path, n_threads, n_tokens):
    """Barriers of one pass of n_tokens; the sizes of the model; rows of an expert's gate."""
    with Engine(path, n_ctx=2 * n_tokens, n_threads=n_threads, moe_mode="mmap") as engine:
        session, team = engine.session(), engine._runtime.team
        session.eval([0] * n_tokens)
        before = team.n_barriers
        session.eval([0] * n_tokens)
        hp = engine.hparams
        n_ff = engine._runtime.model_file.get_int(f"{hp.arch}.expert_feed_forward_length", max(hp.n_ff))
        return team.n_barriers - before, hp, n_ff


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=64)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 512])
    parser.add_argument("--past", type=int, default=0, help="tokens before those computed")
    a = parser.parse_args(argv)
    for n_tokens in a.tokens:
        n_barriers, hp, n_ff = count_barriers(a.model, a.threads, n_tokens)
        print(f"{n_tokens} tokens: {n_barriers} barriers, {n_barriers / hp.n_layer:.1f} a layer")
        for step, n in steps(hp, n_ff, n_tokens, a.threads, a.past):
            print(f"  {step:28s} {n:6d} units, {n / a.threads:6.1f} a thread")
        print(f"  {'output head':28s} {units(hp.n_vocab, a.threads):6d} units")


if __name__ == "__main__":
    main()
