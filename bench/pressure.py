"""moeengine and stock where memory is short: same file, same limit, cold page cache, in turn.

    python -m bench.pressure MODEL.gguf --limit 900M --stock PATH [--read-ahead 8192 128]

Each run is a fresh process in a fresh cgroup after the file was dropped from the page cache:
prefill first (which brings the file in), then decode. Needs root.
"""

import argparse
import os
import sys
from statistics import median

import numpy as np

from bench import peers, report
from bench.machine import QUIET_SHARE, wait_quiet
from bench.memory import MemoryCgroup, drop_cache, parse_size, read_ahead


def main(argv=None) -> int:
    a = _arguments().parse_args(argv)
    taking_part = []
    for mode in [] if a.without_ours else a.modes:
        options = dict(option.split("=", 1) for option in a.option)
        taking_part.append(peers.ours(name=f"ours {mode}", moe_mode=mode, **options))
    for path, ik in ((a.stock, False), (a.ik, True)):
        if path:
            taking_part.append(peers.stock(path, ik=ik))
    rows = []
    for kb in a.read_ahead:
        results = {peer.name: [] for peer in taking_part}
        for _ in range(a.rounds):
            for peer in taking_part:
                if a.wait_quiet:
                    wait_quiet(QUIET_SHARE, a.wait_quiet)
                results[peer.name].append(one_run(peer, a, kb))
                print(f"  {kb:5d} KB  {peer.name}: {_words(results[peer.name][-1])}", flush=True)
        rows += _table(results, kb, a)
    if a.csv:
        report.append_csv(a.csv, rows)
    return 0


def one_run(peer, a, kb) -> dict[str, float]:
    """Prefill and decode speed (tok/s), MB read a token, peak MB of one cold, limited process."""
    rng = np.random.default_rng(3)
    drop_cache(a.model)
    with MemoryCgroup(a.limit) as group, read_ahead(a.model, kb):
        with peer.start(group) as client:
            n_ctx = a.prefill + a.decode + 32
            n_vocab = client.do(
                "load", path=a.model, n_ctx=n_ctx, n_threads=a.threads, **peer.options
            )
            out, before = {}, _bytes_read(client.pid)
            prompt = rng.integers(0, n_vocab, a.prefill).tolist()
            out["prefill"] = a.prefill / client.do("prefill", tokens=prompt)
            after = _bytes_read(client.pid)
            shares = [client.others]
            out["prefill_mb"] = (after - before) / 1e6 / a.prefill
            client.do("decode", tokens=rng.integers(0, n_vocab, a.warm).tolist())
            before = _bytes_read(client.pid)
            tokens = rng.integers(0, n_vocab, a.decode).tolist()
            out["decode"] = a.decode / client.do("decode", tokens=tokens)
            shares.append(client.others)
            out["others"] = max(shares)
            out["decode_mb"] = (_bytes_read(client.pid) - before) / 1e6 / a.decode
            out["peak_mb"] = group.peak_bytes() / 1e6
            out["anonymous_mb"] = group.anonymous_bytes() / 1e6
    return out


def _bytes_read(pid) -> int:
    """Bytes the process fetched from the disk, page faults included."""
    for line in open(f"/proc/{pid}/io"):
        if line.startswith("read_bytes"):
            return int(line.split()[1])
    raise OSError(f"/proc/{pid}/io has no read_bytes")


def _words(r) -> str:
    return (
        f"prefill {r['prefill']:.1f} tok/s ({r['prefill_mb']:.1f} MB read a token), decode "
        f"{r['decode']:.2f} tok/s ({r['decode_mb']:.0f} MB), peak {r['peak_mb']:.0f} MB, "
        f"of it anonymous {r['anonymous_mb']:.0f} MB, others {100 * r['others']:.0f} %"
    )


def _table(results, kb, a) -> list[dict]:
    """Print a line a peer and phase with the ratio of every one of ours to stock."""
    rows, against = [], results.get("stock")
    for name, runs in results.items():
        for phase in ("prefill", "decode"):
            values = [r[phase] for r in runs]
            ratio = ""
            if against and name != "stock":
                r = report.ratios(values, [other[phase] for other in against])
                ratio = f"{r['median']:.2f}"
            print(
                f"read-ahead {kb:5d}  {phase:8s} {name:20s} median {median(values):7.2f}  best "
                f"{max(values):7.2f}  spread {100 * report.spread(values):3.0f} %"
                + (f"  {ratio} x stock" if ratio else "")
            )
            test = f"{phase} limit {a.limit / 1e6:.0f} MB read-ahead {kb}"
            rows.append({
                "engine": name, "threads": a.threads, "file": os.path.basename(a.model),
                "mix": a.mix, "test": test, "rounds": a.rounds, "median": f"{median(values):.3f}",
                "best": f"{max(values):.3f}", "spread": f"{report.spread(values):.3f}",
                "unit": "tok/s", "ratio": ratio,
                "others": f"{median(r['others'] for r in runs):.2f}",
            })  # fmt: skip
    return rows


def _arguments() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("model")
    p.add_argument("--limit", required=True, type=parse_size, help="such as 900M or 4G")
    p.add_argument("--stock", metavar="PATH")
    p.add_argument("--ik", metavar="PATH")
    p.add_argument("--without-ours", action="store_true")
    p.add_argument("--modes", nargs="*", default=["auto"], metavar="MODE", help="default auto")
    p.add_argument("--option", action="append", default=[], metavar="KEY=VALUE", help="for Engine")
    p.add_argument("--read-ahead", type=int, nargs="*", default=[8192, 128], metavar="KB")
    p.add_argument("--prefill", type=int, default=512, metavar="N", help="default %(default)s")
    p.add_argument("--decode", type=int, default=16, metavar="N", help="default %(default)s")
    p.add_argument("--warm", type=int, default=2, metavar="N", help="tokens decoded off the clock")
    p.add_argument("--threads", type=int, default=2, help="default %(default)s")
    p.add_argument("--rounds", type=int, default=3, help="default %(default)s")
    p.add_argument(
        "--wait-quiet", type=float, default=0, metavar="S",
        help="before each run wait up to S seconds for other processes to be idle",
    )  # fmt: skip
    p.add_argument("--csv", metavar="FILE", help="append the rows")
    p.add_argument("--mix", default="", help="name of the quant mix, for the CSV")
    return p


if __name__ == "__main__":
    sys.exit(main())
