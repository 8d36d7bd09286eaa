"""What else the machine is doing while something is measured."""

import os
import time
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")
_POLL_S = 0.5
QUIET_SHARE = 0.1  # others below this share of the machine: a figure is worth keeping


def busy_s() -> float:
    """Processor seconds spent by everyone since boot, stolen time included."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    user, nice, system, _idle, _iowait, irq, softirq, steal = (int(x) for x in fields[:8])
    return (user + nice + system + irq + softirq + steal) / _TICK


def process_s(pid: int) -> float:
    """Processor seconds of one process, all its threads."""
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) / _TICK


class Others:
    """Share of the machine that other processes used: `with Others(pid) as o: …; o.share`.

    share : float, 0 = `pid` had the machine for itself, 1 = every processor was busy elsewhere
    """

    def __init__(self, pid: int):
        self._pid = pid
        self.share = 0.0

    def __enter__(self):
        self._start = time.perf_counter(), busy_s(), process_s(self._pid)
        return self

    def __exit__(self, *_):
        wall, busy, own = self._start
        available = (time.perf_counter() - wall) * os.cpu_count()
        foreign = busy_s() - busy - (process_s(self._pid) - own)
        self.share = min(1.0, max(0.0, foreign / max(available, 1e-3)))


def wait_quiet(share: float, timeout_s: float) -> float:
    """Wait until others use less than `share` of the machine, at most `timeout_s` seconds.

    Returns the last share seen; the caller decides what a busy machine's number is worth.
    """
    end = time.monotonic() + timeout_s
    while True:
        with Others(os.getpid()) as others:
            time.sleep(_POLL_S)
        if others.share < share or time.monotonic() >= end:
            return others.share
