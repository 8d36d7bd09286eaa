"""Ctrl-C at a chosen moment, from a timer of the system: no thread of ours that could be late."""

import contextlib
import signal

import pytest


@contextlib.contextmanager
def interrupt_after(seconds, every=0.0, before=None):
    """The body is interrupted by KeyboardInterrupt after `seconds`, and `every` so often again.

    before : callable        called in the handler, first
    """

    def handler(number, frame):
        if before is not None:
            before()
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGALRM, handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, seconds, every)
            yield
    finally:
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
