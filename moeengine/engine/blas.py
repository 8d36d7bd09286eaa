"""Keeps NumPy's BLAS to one thread while the engine works: two teams would share the cores."""

import contextlib
import os
import threading
import weakref

from threadpoolctl import ThreadpoolController


class _Holders:
    """Who wants the limit now. BLAS thread counts belong to the process, and so does this."""

    def __init__(self):
        self.lock = threading.Lock()
        self.alive = (
            weakref.WeakSet()
        )  # weak: an interrupt between two lines must not count for ever
        self.limit = None


class _Holder:
    pass


_HOLDERS = {}  # process id -> _Holders: a forked child must not wait for its parent's lock


class BlasLimit:
    """Finds the process's BLAS libraries, once; several threads may hold the limit at a time."""

    def __init__(self):
        self._controller = ThreadpoolController()

    @contextlib.contextmanager
    def one_thread(self):
        """One BLAS thread inside; the old number again when the last holder leaves."""
        holders = _HOLDERS.setdefault(os.getpid(), _Holders())
        holder = _Holder()
        with holders.lock:
            holders.alive.add(holder)
            if holders.limit is None:
                holders.limit = self._controller.limit(limits=1, user_api="blas")
        try:
            yield
        finally:
            with holders.lock:
                holders.alive.discard(holder)
                if not holders.alive and holders.limit is not None:
                    holders.limit.restore_original_limits()
                    holders.limit = None
