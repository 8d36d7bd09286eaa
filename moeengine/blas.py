"""Keeps NumPy's BLAS to one thread while the engine works: two teams would share the cores."""

import os
import threading

from threadpoolctl import ThreadpoolController


class _Users:
    """Who holds the limit now. BLAS thread counts belong to the process, and so does this."""

    def __init__(self):
        self.lock = threading.Lock()
        self.n = 0
        self.limit = None


_USERS = {}  # process id -> _Users: a forked child must not wait for its parent's lock


class OneBlasThread:
    """Context manager for several threads at once; the first in limits, the last restores."""

    def __init__(self):
        self._controller = ThreadpoolController()  # looks through the loaded libraries, once

    def __enter__(self):
        users = _USERS.setdefault(os.getpid(), _Users())
        with users.lock:
            users.n += 1
            if users.n == 1:
                users.limit = self._controller.limit(limits=1, user_api="blas")

    def __exit__(self, *_):
        users = _USERS.setdefault(os.getpid(), _Users())
        with users.lock:
            users.n -= 1
            if users.n == 0 and users.limit is not None:
                users.limit.restore_original_limits()
                users.limit = None
