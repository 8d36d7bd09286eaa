"""Ctrl-C at a chosen moment, from a timer of the system: no thread of ours that could be late. And cancels at random ones."""

import signal
import threading

import numpy as np
import pytest

from moeengine.errors import CancelledError


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


def cancel_at_random(session, tokens, back):
    """Evaluate random stretches of `tokens` from random positions on, each cancelled by another thread within 30 ms: 30 of
    them, and on machines that are done sooner as many as it takes until some were cut short.

    back : int       where a session that came to the end goes on

    Returns
    -------
    int              how many were cut short
    """
    rng, n_cancelled = np.random.default_rng(1), 0
    for i in range(3000):
        if i >= 30 and n_cancelled > 3:
            break
        n = int(rng.integers(0, session.n_past + 1))
        session.rewind(n)
        timer = threading.Timer(rng.uniform(0, 0.03), session.cancel)
        timer.start()
        try:
            session.eval(tokens[n : n + int(rng.integers(1, len(tokens) + 1 - n))])
        except CancelledError:
            n_cancelled += 1
        timer.cancel()
        timer.join()
        assert session.n_past >= n and session.tokens == tokens[: session.n_past]
        if session.n_past == len(tokens):
            session.rewind(back)
    try:  # a cancel that came after its call
        session.eval([tokens[session.n_past]])
    except CancelledError:
        pass
    return n_cancelled
