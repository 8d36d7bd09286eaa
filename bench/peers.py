"""Which engines take part in a comparison, and how each is started."""

import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from bench.worker import Client, WorkerError


@dataclass(frozen=True)
class Peer:
    """A way to start one engine; `options` are added to its load command."""

    name: str
    python: str = sys.executable
    module: str = "bench.engine_worker"
    env: dict = field(default_factory=dict)
    options: dict = field(default_factory=dict)

    def start(self, cgroup=None) -> Client:
        return Client(self.name, self.python, self.module, env=self.env, cgroup=cgroup)


@dataclass(frozen=True)
class LlamaBenchPeer:
    """A directory of a llama.cpp build with `llama-bench`: timings only, a process a command."""

    name: str
    program: str

    def start(self, cgroup=None):
        return _LlamaBench(self.name, self.program, cgroup)


def ours(*, isa: str | None = None, name: str = "moeengine", **options) -> Peer:
    """moeengine of this Python, with `options` for Engine and one instruction set if given."""
    return Peer(name, env={"MOEENGINE_ISA": isa} if isa else {}, options=options)


def stock(path: str, *, ik: bool = False):
    """The peer that `path` holds: a Python, a virtual environment, or a llama.cpp build.

    Raises
    ------
    FileNotFoundError     nothing of the three is there
    """
    place = Path(path).absolute()  # not resolved: a virtual environment's Python is a link
    for program in (place / "llama-bench", place / "bin" / "llama-bench"):
        if program.exists() and not ik:
            return LlamaBenchPeer("stock", str(program))
    for python in (place / "bin" / "python", place):
        if python.is_file():
            name, env = ("ik_llama", {"MOEBENCH_PEER": "ik"}) if ik else ("stock", {})
            return Peer(name, str(python), "bench.stock_worker", env)
    raise FileNotFoundError(f"{path}: no Python, virtual environment or llama-bench there")


class _LlamaBench:
    """Answers the timing commands of a worker by running llama-bench once each."""

    def __init__(self, name, program, cgroup):
        self.name, self._program, self._cgroup = name, program, cgroup
        self._depth = 0
        self.others = 0.0  # not measured

    def do(self, command, **arguments):
        if command not in ("load", "prefill", "fill", "decode", "info"):
            raise WorkerError(f"llama-bench cannot do {command}; give a Python with llama-cpp-python")
        return getattr(self, "_" + command)(**arguments)

    def _load(self, path, n_ctx, n_threads, n_ubatch=512):
        self._base = ["-m", path, "-t", str(n_threads), "-ub", str(n_ubatch)]

    def _prefill(self, tokens):
        return self._run("-p", str(len(tokens)), "-n", "0")

    def _fill(self, tokens):
        self._depth = len(tokens)

    def _decode(self, tokens):
        return self._run("-p", "0", "-n", str(len(tokens)), "-d", str(self._depth))

    def _info(self):
        return {"peak_bytes": 0, "cpu_s": 0.0, "version": f"llama-bench {self._program}"}

    def _run(self, *arguments):
        command = [self._program, *self._base, *arguments, "-r", "1", "-o", "json"]
        done = subprocess.run(
            command, capture_output=True, text=True,
            preexec_fn=self._cgroup.enter if self._cgroup else None,
        )  # fmt: skip
        if done.returncode:
            raise WorkerError(f"{' '.join(command)}: {done.stderr[-1000:]}")
        return json.loads(done.stdout)[0]["avg_ns"] / 1e9

    def close(self):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass
