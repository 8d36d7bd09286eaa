"""Who may work on a timeline or a team of threads now, and a call that Ctrl-C can end.

One `Call` is one request of a user: it can be cancelled, and it knows the threads that work for it.
Locks are kept a process: a forked child never waits for a thread that only its parent has.
"""

import os
import threading
import time
import weakref

from moeengine.errors import CancelledError, ClosedError

LEASE_S = 0.25  # a stream that took a step this recently is still being read
TICK_S = 0.1
POLL_S = 0.05  # how often a waiting call looks whether it was cancelled


class Call:
    """One request. `is_cancelled()` says whether somebody asked for its end."""

    def __init__(self, *counters):
        """counters: `Cancellations` that end this call when they rise from now on."""
        self._marks = [(counter, counter.n) for counter in counters]
        self._is_cancelled = False
        self.threads = set()  # those at work for it now; a stream may move between threads

    def is_cancelled(self):
        return self._is_cancelled or any(counter.n != n for counter, n in self._marks)

    def cancel(self):
        """End this call alone, at its next step."""
        self._is_cancelled = True


class Cancellations:
    """Counts requests to cancel: every call that began before the last one is to end."""

    def __init__(self):
        self.n = 0


def _closed():
    gate = threading.Lock()
    gate.acquire()
    return gate


class _State:
    def __init__(self):
        self.lock = threading.Lock()
        self.gate = _closed()  # opened when something changes; a Condition would not bear Ctrl-C while it waits
        self.owner = None  # weakref to the Call at work
        self.lease = None  # weakref to the Call of a stream between two steps
        self.lease_ends_s = 0.0
        self.lease_thread = None


class Turns:
    """One call at a time. A stream gives its turn back between steps; it is preferred for a moment.

    `with turns.take(call):` waits for the turn. CancelledError: the call was cancelled meanwhile.
    ClosedError: the call comes from inside the owner's own callback, and would wait for itself.
    """

    def __init__(self):
        self._states = {}

    def take(self, call, *, lease=False):
        return _Turn(self, call, lease)

    def is_mine(self):
        """Whether a call that this thread works for has the turn."""
        owner = self._owner(self._state())
        return owner is not None and threading.get_ident() in owner.threads

    def _state(self):
        state = self._states.get(os.getpid())
        if state is None:  # setdefault is atomic: two threads get the same one
            state = self._states.setdefault(os.getpid(), _State())
        return state

    @staticmethod
    def _owner(state):
        # weak, so that a turn ends with its call even where an interrupt hits between two lines
        return state.owner() if state.owner is not None else None

    def _must_wait(self, state, call):
        if self._owner(state) is not None:
            return True
        reader = state.lease() if state.lease is not None else None
        if reader is None or reader is call or state.lease_thread == threading.get_ident():
            return False
        return time.monotonic() < state.lease_ends_s


class _Turn:
    def __init__(self, turns, call, lease):
        self._state, self._turns, self._call, self._lease = turns._state(), turns, call, lease

    def __enter__(self):
        state, turns, call = self._state, self._turns, self._call
        if turns.is_mine():
            raise ClosedError(
                "busy: found a call from a callback of this engine, expected its return first"
            )
        while True:
            with state.lock:
                if not turns._must_wait(state, call):
                    call.threads = {threading.get_ident()}
                    state.owner = weakref.ref(call)
                    return
                gate = state.gate
            if gate.acquire(timeout=POLL_S):
                gate.release()  # for the next one who waits at it
            if call.is_cancelled():
                raise CancelledError("cancelled while another call was at work")

    def __exit__(self, error, *_):
        state, call = self._state, self._call
        if self._turns._owner(state) is not call:
            return
        with state.lock:
            state.owner = None
            state.lease = weakref.ref(call) if self._lease and error is None else None
            state.lease_thread = threading.get_ident()
            state.lease_ends_s = time.monotonic() + LEASE_S
            gate, state.gate = state.gate, _closed()
        gate.release()


def run_interruptibly(work, cancel, call, tick=None):
    """`work()`, from a helper thread, so that this, the main thread, can take a signal meanwhile.

    An exception that a signal raises here (KeyboardInterrupt) calls `cancel()` until `work` has
    ended, then goes on. In other threads, which get no signals, `work` is simply called.
    tick : callable          called now and then while `work` goes on; the same for its exceptions
    """
    if threading.current_thread() is not threading.main_thread():
        return work()
    outcome = []  # (succeeded, result or exception)
    claim, done = threading.Lock(), threading.Lock()
    done.acquire()

    def run():
        if not claim.acquire(blocking=False):
            return  # interrupted before this thread began
        call.threads.add(threading.get_ident())
        try:
            outcome.append((True, work()))
        except BaseException as error:
            outcome.append((False, error))
        finally:
            call.threads.discard(threading.get_ident())
            done.release()

    try:
        threading.Thread(target=run, name="moeengine-call", daemon=True).start()
        while not done.acquire(timeout=TICK_S if tick else -1):  # interruptible in every Python
            tick()
    except BaseException as error:
        if claim.acquire(blocking=False):
            if isinstance(error, RuntimeError):  # the system refuses another thread
                return work()
        else:
            _wait_for(outcome, cancel)
        outcome.clear()  # its exception's traceback holds the helper's frame, and that holds `outcome`
        raise
    succeeded, value = outcome.pop()
    if succeeded:
        return value
    try:
        raise value
    finally:
        del value  # or the exception's traceback would hold this frame, and the frame the exception


def _wait_for(outcome, cancel):
    """Until the helper has ended, whatever signals come: it writes into buffers of its caller."""
    while not outcome:
        try:
            cancel()
            time.sleep(0.002)
        except BaseException:  # a second Ctrl-C; the first is on its way to the user
            continue
