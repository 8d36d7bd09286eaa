"""Engines in processes of their own, commanded over pipes; only one of them runs at a time.

A worker module hands an object to `serve`; its public methods are the commands. `Client` starts the
worker and stops it with SIGSTOP between commands, so that spinning threads of one engine never
steal time from another. Only the standard library here: stock's Python may have nothing else.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.machine import Others

ROOT = Path(__file__).resolve().parent.parent


class WorkerError(RuntimeError):
    """A command failed or the worker died; holds the last lines it wrote."""


def serve(engine) -> None:
    """Answer JSON commands from stdin, one a line, until it closes.

    What libraries print goes to stderr, so that it cannot mix with the answers.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        command = json.loads(line)
        try:
            result = getattr(engine, command["do"])(**command["with"])
            answer = {"result": result}
        except Exception as err:  # whatever went wrong belongs to the caller
            answer = {"error": f"{type(err).__name__}: {err}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


class Client:
    """One worker process; a context manager. `client.do("prefill", tokens=[…])` runs a command.

    others : float     share of the machine that other processes took during the last command
    """

    def __init__(self, name, python, module, *, env=None, cgroup=None):
        """
        name : str            shown in tables
        python, module : str  the worker is `python -m module`, started in the repository's root
        env : dict or None    added to the environment
        cgroup                has `enter()`, called in the child before it becomes the worker
        """
        self.name = name
        self.others = 0.0
        self._log = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            [str(python), "-m", module], cwd=ROOT, env={**os.environ, **(env or {})},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True,
            preexec_fn=cgroup.enter if cgroup else None,
        )  # fmt: skip

    @property
    def pid(self) -> int:
        return self._process.pid

    def do(self, command: str, **arguments):
        """Run a command and return its result; raises WorkerError."""
        self._signal(signal.SIGCONT)
        with Others(self.pid) as others:
            line = self._ask(json.dumps({"do": command, "with": arguments}))
        self.others = others.share
        if not line:
            status = self._process.wait()
            raise WorkerError(f"{self.name} ended with status {status}\n{self._last_words()}")
        self._signal(signal.SIGSTOP)
        answer = json.loads(line)
        if "error" in answer:
            raise WorkerError(f"{self.name}: {answer['error']}\n{self._last_words()}")
        return answer["result"]

    def _ask(self, command: str) -> str:
        try:
            self._process.stdin.write(command + "\n")
            self._process.stdin.flush()
            return self._process.stdout.readline()
        except BrokenPipeError:
            return ""

    def _signal(self, number):
        if self._process.poll() is None:
            os.kill(self._process.pid, number)

    def _last_words(self) -> str:
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - 2000))
        return self._log.read().decode(errors="replace")

    def close(self):
        self._signal(signal.SIGCONT)
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._log.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
