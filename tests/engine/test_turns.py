"""Turns and interruptible calls on their own; BLAS threads."""

import threading
import time
from types import SimpleNamespace

import pytest
from threadpoolctl import threadpool_info

from moeengine.engine.blas import BlasLimit
from moeengine.engine.turns import Call, Cancellations, Turns, run_interruptibly
from moeengine.errors import CancelledError, ClosedError
from tests.interrupt import interrupted


def test_one_at_a_time():
    turns, inside, seen = Turns(), [], []

    def work():
        for _ in range(50):
            with turns.take(Call()):
                inside.append(1)
                seen.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert seen == [1] * 200


def test_a_call_inside_its_own_turn_is_refused():
    turns = Turns()
    with turns.take(Call()):
        assert turns.is_mine()
        with pytest.raises(ClosedError, match="busy"):
            with turns.take(Call()):
                pass
    assert not turns.is_mine()
    with turns.take(Call()):
        pass


def test_a_turn_ends_with_its_call():
    """As after an interrupt between two lines of the bookkeeping."""
    turns = Turns()
    call = Call()
    turns.take(call).__enter__()
    del call
    with turns.take(Call()):
        pass


def test_waiting_can_be_cancelled():
    turns, counter = Turns(), Cancellations()
    holder, waiter, outcome = Call(), Call(counter), []

    def wait():
        try:
            with turns.take(waiter):
                outcome.append("in")
        except CancelledError:
            outcome.append("cancelled")

    with turns.take(holder):
        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(0.02)
        counter.n += 1
        thread.join(60)
    assert outcome == ["cancelled"]


def test_ctrl_c_while_waiting_is_ctrl_c():
    """At whatever line of the waiting it comes, no other error takes its place."""
    turns, is_over = Turns(), threading.Event()

    def work():
        while not is_over.is_set():
            with turns.take(Call()):
                pass

    threads = [threading.Thread(target=work) for _ in range(2)]
    for t in threads:
        t.start()
    try:
        for i in range(60):
            interrupted(work, after=0.001 + 0.0001 * (i % 10))
    finally:
        is_over.set()
        for t in threads:
            t.join()
    with turns.take(Call()):
        pass


def test_a_stream_that_is_read_keeps_others_out_and_a_silent_one_does_not():
    turns, stream, order = Turns(), Call(), []

    def other():
        with turns.take(Call()):
            order.append("other")

    with turns.take(stream, lease=True):
        pass
    thread = threading.Thread(target=other)
    thread.start()
    for _ in range(3):
        time.sleep(0.02)
        with turns.take(stream, lease=True):
            order.append("stream")
    thread.join(60)
    assert order == ["stream"] * 3 + ["other"]


def test_results_and_errors_come_through():
    assert run_interruptibly(lambda: 7, None, Call()) == 7
    with pytest.raises(ZeroDivisionError) as caught:
        run_interruptibly(lambda: 1 / 0, None, Call())
    assert caught.value.__context__ is None


def test_the_helper_works_for_the_call():
    turns, call = Turns(), Call()
    with turns.take(call):
        assert run_interruptibly(turns.is_mine, None, call) and turns.is_mine()
        threads = run_interruptibly(lambda: set(call.threads), None, call)
        assert len(threads) == 2 and call.threads == {threading.get_ident()}


def test_a_call_belongs_to_the_thread_that_works_for_it():
    """A stream may be made in one thread and read in another."""
    turns, call, seen = Turns(), Call(), []

    def read():
        with turns.take(call):
            seen.append(turns.is_mine())
            inside.set()
            leave.wait(60)

    inside, leave = threading.Event(), threading.Event()
    thread = threading.Thread(target=read)
    thread.start()
    assert inside.wait(60) and not turns.is_mine()
    leave.set()
    with turns.take(Call()):
        pass
    thread.join()
    assert seen == [True]


def test_no_further_thread_to_be_had(monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert run_interruptibly(lambda: 7, None, Call()) == 7


def test_an_interrupt_waits_for_the_work_to_end():
    stop, ended = threading.Event(), []

    def work():
        stop.wait(60)
        time.sleep(0.05)
        ended.append(True)

    interrupted(lambda: run_interruptibly(work, stop.set, Call()), after=0.05, every=0.03)  # an impatient user
    assert ended == [True]


def blas_threads():
    return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]


def test_blas_has_one_thread_inside_and_its_own_number_after():
    before = blas_threads()
    outer, inner = BlasLimit().one_thread(), BlasLimit().one_thread()
    outer.__enter__()
    assert set(blas_threads()) <= {1}
    with inner:
        outer.__exit__(None, None, None)
        assert set(blas_threads()) <= {1}  # somebody is still at work
    assert blas_threads() == before


def test_a_holder_that_vanished_does_not_count(monkeypatch):
    """As after an interrupt before the limit was set."""
    before = blas_threads()
    limit = BlasLimit()

    def interrupt(**settings):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(limit, "_controller", SimpleNamespace(limit=interrupt))
        with pytest.raises(KeyboardInterrupt), limit.one_thread():
            pass
    with limit.one_thread():
        assert set(blas_threads()) <= {1}
    assert blas_threads() == before
