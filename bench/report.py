"""Result rows: what a number was measured on, and the arithmetic of interleaved rounds."""

import csv
import datetime
import subprocess
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
COLUMNS = (
    "date", "commit", "cpu", "engine", "threads", "file", "mix", "test", "rounds",
    "median", "best", "spread", "unit", "ratio", "others",
)  # fmt: skip


def ratios(ours: list[float], peer: list[float]) -> dict[str, float]:
    """Median, lowest and highest of the per-round ratios ours / peer; both lists in round order."""
    each = [a / b for a, b in zip(ours, peer)]
    return {"median": median(each), "low": min(each), "high": max(each)}


def spread(values: list[float]) -> float:
    """(highest - lowest) / median, the noise of a list of repeats."""
    return (max(values) - min(values)) / median(values)


def commit() -> str:
    """Short commit of the working tree, with `+` if files differ from it."""
    run = lambda *a: subprocess.run(["git", "-C", ROOT, *a], capture_output=True, text=True).stdout
    changed = run("status", "--porcelain", "--untracked-files=no").strip()
    return run("rev-parse", "--short", "HEAD").strip() + ("+" if changed else "")


def cpu() -> str:
    """Name, family and model of the processor as Linux gives them."""
    found = {}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        found.setdefault(key.strip(), value.strip())
    name = found.get("model name", "unknown processor")
    return f"{name} (family {found.get('cpu family')}, model {found.get('model')})"


def quant_mix(path: str) -> str:
    """Share of the file's weight bytes a type, largest first: `IQ2_XXS 80 %, Q5_K 13 %, …`."""
    from gguf import GGUFReader

    total = {}
    for tensor in GGUFReader(path).tensors:
        total[tensor.tensor_type.name] = total.get(tensor.tensor_type.name, 0) + tensor.n_bytes
    n = sum(total.values())
    top = sorted(total.items(), key=lambda item: -item[1])[:4]
    return ", ".join(f"{name} {100 * size / n:.0f} %" for name, size in top)


def append_csv(path: str, rows: list[dict]) -> None:
    """Add rows with the keys of COLUMNS; writes the header if the file is new."""
    new = not Path(path).exists()
    with open(path, "a", newline="") as f:
        writer = csv.DictWriter(f, COLUMNS)
        if new:
            writer.writeheader()
        stamp = datetime.datetime.now().isoformat(timespec="minutes")
        writer.writerows({"date": stamp, "commit": commit(), "cpu": cpu(), **row} for row in rows)
