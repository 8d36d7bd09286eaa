"""How near the supply modes come to what the disk and the arithmetic allow, by probes of the same minute.

    python -m bench.supply_ratios MODEL.gguf --limit 900M [--only sweep stream routed modes resident chunks] [--rounds 3]

Every run is a fresh process under a memory cgroup, the file dropped from the page cache before; probes stand between the
runs. Needs root. Each line: a ratio, what is asked of it, and the figures it comes from.

sweep     a short prompt (--sweep tokens) uses nearly all experts and computes little: bytes a second against reading the
          same slices into a small ring, and against mmap mode.
stream    single tokens: against 1 / (compute + missed bytes / rate into a large slab), with prediction against
          1 / max(...); compute is the time a token of the same engine with everything in memory. `skewed` tokens are
          drawn from few, so that the routers' choices repeat; stream against prefetch on those.
modes     prefill and decode of auto against the best fixed mode.
routed    stream against prefetch where tokens are routed as in the shipped model's record; MODEL is one of bench.routed.
resident  a prompt of 512 under the limit against one with everything in memory.
chunks    bytes of experts read for a prompt of 4096 in chunks of 512 to 4096, as shares of the experts' bytes.
"""

import argparse
import mmap
import os
import random
import sys
import threading
import time
from statistics import median

import numpy as np

from bench import peers
from bench.memory import MemoryCgroup, drop_cache, parse_size, read_ahead
from moeengine.cli.iobench import measure

SLICE_BYTES = 99 * 4096
SLAB_BYTES = 1 << 30
PROBE_S = 0.25
N_SKEWED = 12  # different tokens
FIXED = ("mmap", "prefetch", "sweep-prefill", "stream")


def ring_rate(path):
    """Bytes a second of random slices past the page cache into buffers that stay in the processor's cache."""
    rates = [measure(path, os.stat(path).st_size, SLICE_BYTES, "direct", n, PROBE_S)["gb_s"] for n in (2, 4)]
    return 1e9 * max(rates)


def slab_rate(path, n_readers=4):
    """The same into places all over a large slab on huge pages."""
    slab = mmap.mmap(-1, SLAB_BYTES + (2 << 20))
    slab.madvise(mmap.MADV_HUGEPAGE)
    for at in range(0, SLAB_BYTES, 4096):
        slab[at] = 0
    view, size, counts = memoryview(slab), os.stat(path).st_size, [0] * n_readers
    end = time.perf_counter() + PROBE_S

    def reader(i):
        choose, fd = random.Random(i), os.open(path, os.O_RDONLY | os.O_DIRECT)
        try:
            while time.perf_counter() < end:
                to = choose.randrange((SLAB_BYTES - SLICE_BYTES) // 4096) * 4096
                at = choose.randrange((size - SLICE_BYTES) // 4096) * 4096
                os.preadv(fd, [view[to : to + SLICE_BYTES]], at)
                counts[i] += 1
        finally:
            os.close(fd)

    threads = [threading.Thread(target=reader, args=(i,)) for i in range(n_readers)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) * SLICE_BYTES / (time.perf_counter() - start)


class Run:
    """One process: `prefill(n)` and `decode(tokens)` give seconds and the phase's counters of the supply."""

    def __init__(self, a, limit, n_ctx=1024, **options):
        self.a, self.limit, self.n_ctx, self.options = a, limit, n_ctx, options

    def __enter__(self):
        drop_cache(self.a.model)
        self.group = MemoryCgroup(self.limit) if self.limit else None
        self.knob = read_ahead(self.a.model, self.a.read_ahead)
        self.knob.__enter__()
        self.client = peers.ours(**self.options).start(self.group)
        self.n_vocab = self.client.do("load", path=self.a.model, n_ctx=self.n_ctx, n_threads=self.a.threads, **self.options)
        return self

    def __exit__(self, *exc):
        self.client.close()
        self.knob.__exit__(*exc)
        if self.group:
            self.group.remove()

    def prefill(self, n):
        tokens = np.random.default_rng(3).integers(0, self.n_vocab, n).tolist()
        return self._timed("prefill", tokens)

    def decode(self, n, seed, skewed=False):
        rng = np.random.default_rng(seed)
        tokens = rng.integers(0, self.n_vocab, n)
        if skewed:
            few = np.random.default_rng(1).integers(0, self.n_vocab, N_SKEWED)
            weights = 1 / np.arange(1, N_SKEWED + 1)
            tokens = few[rng.choice(N_SKEWED, n, p=weights / weights.sum())]
        return self._timed("decode", tokens.tolist())

    def _timed(self, phase, tokens):
        before = self.client.do("stats")["supply"][phase]
        seconds = self.client.do(phase, tokens=tokens)
        after = self.client.do("stats")["supply"][phase]
        return seconds, {k: after[k] - before[k] for k in after if isinstance(after[k], (int, float))}


def say(name, value, asked, words):
    print(f"{name:34s} {value:6.2f}  asked {asked:5.2f} {'  ' if value >= asked else '! '} {words}", flush=True)


def sweep(a):
    ratios, against, words = [], [], ""
    for _ in range(a.rounds):
        hot = ring_rate(a.model)
        with Run(a, a.limit, moe_mode="stream", cache_mb=0) as run:
            seconds, counts = run.prefill(a.sweep)
        hot = (hot + ring_rate(a.model)) / 2
        with Run(a, a.limit, moe_mode="mmap") as run:
            plain, _ = run.prefill(a.sweep)
        rate = counts["bytes_read"] / seconds
        ratios.append(rate / hot)
        against.append(plain / seconds)
        words = (f"{rate / 1e9:.2f} of {hot / 1e9:.2f} GB/s, {a.sweep} tokens in {seconds:.2f} s, mmap {plain:.2f} s, "
                 f"waiting {100 * counts['wait_s'] / seconds:.0f} %")  # fmt: skip
    say("sweep direct / ring-read rate", median(ratios), 0.70, words)
    say("sweep direct / mmap", median(against), 1.25, words)


def stream(a):
    with Run(a, None, moe_mode="mmap") as run:
        run.prefill(512)
        run.decode(a.decode, 4)
        compute = min(run.decode(a.decode, 5)[0] for _ in range(3)) / a.decode
    plain, ahead, skew = [], [], []
    words = {}
    for _ in range(a.rounds):
        for layers, into in ((0, plain), (a.layers_ahead, ahead)):
            cold = slab_rate(a.model)
            with Run(a, a.limit, moe_mode="stream", prefetch_layers=layers) as run:
                run.prefill(64)
                run.decode(a.warm, 7)
                seconds, counts = run.decode(a.decode, 8)
            cold = (cold + slab_rate(a.model)) / 2
            missed, token = counts["bytes_wanted"] / a.decode / cold, seconds / a.decode
            bound = max(compute, missed) if layers else compute + missed
            into.append(bound / token)
            words[layers] = (f"{1 / token:.2f} of {1 / bound:.2f} tok/s: compute {1e3 * compute:.0f} ms, missed "
                             f"{counts['bytes_wanted'] / a.decode / 1e6:.0f} MB at {cold / 1e9:.2f} GB/s, read "
                             f"{counts['bytes_read'] / a.decode / 1e6:.0f} MB, waited {1e3 * counts['wait_s'] / a.decode:.0f} ms, "
                             f"hits {100 * counts['n_hits'] / max(1, counts['n_hits'] + counts['n_misses']):.0f} %")  # fmt: skip
        rates = {}
        for mode in ("stream", "prefetch"):
            with Run(a, a.limit, moe_mode=mode) as run:
                run.prefill(64)
                run.decode(a.warm, 7, skewed=True)
                rates[mode] = a.decode / run.decode(a.decode, 8, skewed=True)[0]
        skew.append(rates["stream"] / rates["prefetch"])
        words["skew"] = f"{rates['stream']:.2f} / {rates['prefetch']:.2f} tok/s"
    say("stream / serial bound", median(plain), 0.90, words[0])
    say(f"stream, {a.layers_ahead} ahead / bound", median(ahead), 0.65, words[a.layers_ahead])
    say("stream / prefetch, skewed", median(skew), 1.30, words["skew"])


def routed(a):
    """The record token by token: its first a.warm off the clock, then a.decode."""
    ratios, words = [], ""
    for _ in range(a.rounds):
        rates, found = {}, {}
        for mode in ("stream", "prefetch"):
            with Run(a, a.limit, n_ctx=a.warm + a.decode, moe_mode=mode) as run:
                run.client.do("decode", tokens=list(range(a.warm)))
                seconds, found[mode] = run._timed("decode", list(range(a.warm, a.warm + a.decode)))
                rates[mode] = a.decode / seconds
        ratios.append(rates["stream"] / rates["prefetch"])
        hits = 100 * found["stream"]["n_hits"] / max(1, found["stream"]["n_hits"] + found["stream"]["n_misses"])
        words = f"{rates['stream']:.2f} / {rates['prefetch']:.2f} tok/s, hits {hits:.0f} %"
    say("stream / prefetch, recorded", median(ratios), 1.30, words)


def modes(a):
    found = {mode: {"prefill": [], "decode": []} for mode in ("auto", *FIXED)}
    for _ in range(a.rounds):
        for mode, into in found.items():
            with Run(a, a.limit, moe_mode=mode) as run:
                into["prefill"].append(512 / run.prefill(512)[0])
                run.decode(a.warm, 7)
                into["decode"].append(a.decode / run.decode(a.decode, 8)[0])
    for phase in ("prefill", "decode"):
        best = max(FIXED, key=lambda mode: median(found[mode][phase]))
        words = ", ".join(f"{mode} {median(found[mode][phase]):.2f}" for mode in found) + f" tok/s; best {best}"
        ratio = median(x / y for x, y in zip(found["auto"][phase], found[best][phase]))
        say(f"auto / best fixed, {phase}", ratio, 0.95, words)


def resident(a):
    ratios, words = [], ""
    for _ in range(a.rounds):
        with Run(a, None, moe_mode="mmap") as run:
            run.prefill(512)
            free = min(run.prefill(512)[0] for _ in range(2))
        with Run(a, a.limit) as run:
            seconds, counts = run.prefill(512)
        ratios.append(free / seconds)
        words = (f"{512 / seconds:.0f} of {512 / free:.0f} tok/s, {counts['bytes_read'] / 1e9:.2f} GB read, waiting "
                 f"{100 * counts['wait_s'] / seconds:.0f} %")  # fmt: skip
    say("prefill / resident prefill", median(ratios), 0.88, words)


def chunks(a):
    n, last = 4096, None
    for n_ubatch in (512, 1024, 2048, 4096):
        with Run(a, a.limit, n_ctx=n + 32, n_ubatch=n_ubatch, moe_mode="stream", cache_mb=0) as run:
            seconds, counts = run.prefill(n)
        read = counts["bytes_read"] / n
        say(f"bytes read, chunks of {n_ubatch} / before", (last or read) / read, 1.0,
            f"{counts['bytes_read'] / 1e9:.2f} GB for {n} tokens, {read / 1e6:.2f} MB a token, {n / seconds:.0f} tok/s")  # fmt: skip
        last = read


PARTS = {"sweep": sweep, "stream": stream, "routed": routed, "modes": modes, "resident": resident, "chunks": chunks}


def main(argv=None) -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model")
    p.add_argument("--limit", type=parse_size, help="such as 900M or 4G; none: memory is not limited")
    p.add_argument("--only", nargs="*", default=["sweep", "stream", "modes"], choices=list(PARTS))
    p.add_argument("--rounds", type=int, default=3, help="default %(default)s")
    p.add_argument("--sweep", type=int, default=64, metavar="N", help="tokens (default %(default)s)")
    p.add_argument("--decode", type=int, default=24, metavar="N", help="tokens timed (default %(default)s)")
    p.add_argument("--warm", type=int, default=24, metavar="N", help="tokens before (default %(default)s)")
    p.add_argument("--layers-ahead", type=int, default=1, metavar="N", help="predicted (default %(default)s)")
    p.add_argument("--read-ahead", type=int, default=128, metavar="KB", help="default %(default)s")
    p.add_argument("--threads", type=int, default=2, help="default %(default)s")
    a = p.parse_args(argv)
    for name in a.only:
        PARTS[name](a)
    return 0


if __name__ == "__main__":
    sys.exit(main())
