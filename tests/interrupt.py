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
        signal.setitimer(signal.ITIMER_REAL, seconds, every)
        yield
    except KeyboardInterrupt as error:
        error.__traceback__ = None  # or it would keep this generator's frame, and its callers', in a cycle
    else:
        pytest.fail("expected KeyboardInterrupt")
    finally:
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
