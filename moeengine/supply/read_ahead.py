"""A model that fits into memory but lies on the disk: its files are read into the page cache while it works already."""

import os
import threading

PIECE_BYTES = 4 << 20


class ReadAhead:
    """One thread that reads a model's files from their beginning, once. Whoever starts it calls `close`.

    What a pass needs earlier comes by its page faults as ever; passes go through the file in the same direction.
    """

    def __init__(self, model_file):
        self.n_bytes = 0  # read so far
        self.is_done = False
        self._stop = threading.Event()
        self._paths = [mapped.path for mapped in model_file.maps]
        self._thread = threading.Thread(target=self._run, name="moeengine-read-ahead", daemon=True)
        self._thread.start()

    def _run(self):
        piece = memoryview(bytearray(PIECE_BYTES))
        try:
            for path in self._paths:
                with open(path, "rb", buffering=0) as file:
                    while not self._stop.is_set() and (n := file.readinto(piece)):
                        self.n_bytes += n
            self.is_done = not self._stop.is_set()
        except OSError:
            pass  # only speed is lost: a page that cannot be read shows where it is used

    def close(self):
        """Stop reading, and wait until the files are closed. Again, or in a forked child: nothing."""
        self._stop.set()
        self._thread.join()
