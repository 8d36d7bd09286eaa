"""Counters of a loaded model. Every figure has its unit in its name."""

from dataclasses import asdict, dataclass


@dataclass
class Counters:
    """What the calls of one Engine, sessions included, have done so far.

    A forward pass over one token counts as decode, over more as prefill.
    """

    n_forward: int = 0
    n_prefill_tokens: int = 0
    prefill_s: float = 0.0
    n_decode_tokens: int = 0
    decode_s: float = 0.0
    n_reused_tokens: int = 0  # of prompts, found in the timeline and not computed again
    n_generated_tokens: int = 0
    n_generations: int = 0
    last_seed: int | None = None  # of the newest generation

    def count_forward(self, n_tokens, seconds):
        self.n_forward += 1
        if n_tokens > 1:
            self.n_prefill_tokens += n_tokens
            self.prefill_s += seconds
        else:
            self.n_decode_tokens += n_tokens
            self.decode_s += seconds

    def as_dict(self):
        return asdict(self)


def shown_bytes(n):
    """'1.23 GB': three digits, decimal units, as disks and downloads count. Everybody who tells a size uses this."""
    if abs(n) < 1000:
        return f"{n} B"
    for unit in ("kB", "MB", "GB", "TB"):
        n /= 1000
        if abs(n) < 999.5 or unit == "TB":
            return f"{n:.{2 if abs(n) < 9.995 else 1 if abs(n) < 99.95 else 0}f} {unit}"
