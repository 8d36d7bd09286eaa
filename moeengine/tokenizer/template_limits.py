"""What one rendering of a chat template may use. A template comes from a model file, so it may be made to do harm.

Steps are counted at every loop, call and filter, the clock is looked at with them, and every operation that can make
something much larger than what it was given is checked before it is done. What remains possible is to spend
`MAX_SECONDS` and some hundred megabytes.
"""

import re
import time

from jinja2.utils import Namespace

from moeengine.errors import ConfigError

MAX_TEMPLATE = 1 << 18  # characters, compiled in seconds; the longest known are under 64 K
MAX_STEPS = 500_000
MAX_SECONDS = 5.0
MAX_TEXT = 1 << 20  # characters of any string made, or 8 times the messages if that is more
MAX_ITEMS = 200_000  # entries of a container, counted as often as they are reached; or 8 times those of the messages
MAX_WIDTH = 10_000  # padding, indentation, batch sizes
MAX_BITS = 4096  # of an integer
CONTAINERS = (list, tuple, dict, Namespace)

_WIDE_FORMAT = re.compile(r"%[^a-zA-Z%]*(?:\d{5}|\*)|\{[^{}]*:[^{}]*\d{5}|\{[^{}]*\{")


class Budget:
    """What is left for one rendering.

    Parameters
    ----------
    n_chars : int    characters in the messages
    n_entries : int  entries of the containers in them
    sizes : dict     id of a container the caller gave -> (entries, characters) in it; they do not change
    """

    def __init__(self, n_chars=0, n_entries=0, sizes=None):
        self._steps = MAX_STEPS + 64 * n_entries
        self._max_items = max(MAX_ITEMS, 8 * n_entries)
        self._deadline = time.thread_time() + MAX_SECONDS
        self._sizes = sizes or {}
        self.max_text = max(MAX_TEXT, 8 * n_chars)

    def spend(self, steps=1):
        """Take note of work about to be done."""
        self._steps -= steps
        if self._steps < 0:
            raise ConfigError("more steps than any conversation of this length needs")
        if time.thread_time() > self._deadline:
            raise ConfigError(f"more than {MAX_SECONDS} seconds of computing")

    def check_text(self, n_chars):
        """Refuse a string of this length before it is made."""
        if n_chars > self.max_text:
            raise ConfigError(f"a text of {n_chars} characters, expected at most {self.max_text}")

    def measured(self, value):
        """`value`, unless it is a container that is huge when written out, as nested references can make it."""
        if isinstance(value, CONTAINERS):
            self._extent(value)
        return value

    def _extent(self, value):
        """About how many characters a value is when written out."""
        if not isinstance(value, CONTAINERS):
            return len(value) if isinstance(value, str) else 32
        n_entries = n_chars = 0
        stack = [value]
        while stack:
            item = stack.pop()
            known = self._sizes.get(id(item))
            if known is None:
                parts = _parts(item)
                stack += [part for part in parts if isinstance(part, CONTAINERS)]
                known = len(parts), sum(len(part) for part in parts if isinstance(part, str))
            n_entries += known[0]
            n_chars += known[1]
            if n_entries > self._max_items:
                raise ConfigError(f"a list or mapping of more than {self._max_items} entries")
            self.check_text(n_chars)
        return n_chars + 8 * n_entries

    def check_binop(self, operator, left, right):
        """Refuse `left operator right` when the result would be too large. For `+`, `*`, `**` and `%`."""
        if operator == "%":
            if isinstance(left, str):
                self.check_format(left, right if isinstance(right, tuple) else (right,))
            return
        sizes = [
            len(side) if isinstance(side, (str, list, tuple)) else None for side in (left, right)
        ]
        if operator == "+" and None not in sizes:
            self._check_size(left, sum(sizes))
        elif operator == "*" and sizes != [None, None]:
            count = right if sizes[1] is None else left
            if isinstance(count, int):
                self._check_size(
                    left if sizes[1] is None else right, (sizes[0] or sizes[1] or 0) * max(count, 0)
                )
        elif isinstance(left, int) and isinstance(right, int):
            bits = (
                left.bit_length() * max(right, 1)
                if operator == "**"
                else left.bit_length() + right.bit_length()
            )
            if bits > MAX_BITS:
                raise ConfigError(f"an integer of more than {MAX_BITS} bits")

    def check_format(self, text, values):
        """Refuse a format string that pads to a great or computed width, or repeats long values too often."""
        if _WIDE_FORMAT.search(text):
            raise ConfigError("a format with a computed width or one of more than 4 digits")
        longest = max(map(self._extent, values), default=0)
        self.check_text(len(text) + longest * (text.count("{") + text.count("%")))

    def check_width(self, values):
        """Refuse padding arguments that are too large."""
        for value in values:
            size = (
                len(value)
                if isinstance(value, str)
                else abs(value)
                if isinstance(value, int)
                else 0
            )
            if size > MAX_WIDTH:
                raise ConfigError(f"a width of {size}, expected at most {MAX_WIDTH}")

    def check_replace(self, text, old, new, count=-1):
        """Refuse `text.replace(old, new)` when the result would be too long."""
        n_found = text.count(old)
        self.check_text(len(text) + n_found * max(len(new) - len(old), 0))

    def check_join(self, sep, parts):
        """Refuse `sep.join(parts)` when the result would be too long."""
        self.check_text(sum(len(part) for part in parts) + len(sep) * len(parts))

    def _check_size(self, sequence, size):
        if isinstance(sequence, str):
            self.check_text(size)
        elif size > self._max_items:
            raise ConfigError(f"a list of {size} entries, expected at most {self._max_items}")


def _parts(container):
    """What a container is made of; for a mapping, keys and values."""
    if isinstance(container, Namespace):
        container = container._Namespace__attrs
    return (
        [part for pair in container.items() for part in pair]
        if isinstance(container, dict)
        else container
    )
