"""Ctrl-C at a chosen moment, from a timer of the system: no thread of ours that could be late."""

import signal

import pytest


def interrupted(work, after, every=0.0, before=None):
    """Call `work()`, which KeyboardInterrupt must end `after` seconds; it comes `every` so often again.

    A function and not a block: a machine that stops for a moment between the timer's start and the
    block's first line would let the interrupt out to the test run.

    before : callable        called in the handler, first
    """
    is_over = False

    def handler(number, frame):
        if not is_over:
            if before is not None:
                before()
            raise KeyboardInterrupt

    previous = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, after, every)
        work()
    except KeyboardInterrupt as error:
        is_over = True  # first: before any call, so that no signal is handled in between
        error.__traceback__ = None  # or it would keep this frame, and its callers', in a cycle
    else:
        is_over = True
        pytest.fail("expected KeyboardInterrupt")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
