"""Turns tokens into text that may be shown: whole characters, and nothing of a stop string.

Knows nothing of models; a tokenizer gives the bytes of a token.
"""

import codecs


class AnswerText:
    """Text of one answer, token by token.

    The pieces of `push` and the tail of `finish`, joined, are the text up to the first stop string.
    A character whose bytes come in several tokens is held back until it is whole; bytes that are no
    character come out as U+FFFD. Text that may be the start of a stop string is held back until it
    is decided.

    stops : tuple of str     the one that is complete first wins, the longest of those
    """

    def __init__(self, stops=()):
        self._stops = stops
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._text = ""  # held back
        self._shown = []  # for each character of it: whether it is part of the answer
        self.stop = None  # the stop string that was met

    def push(self, data, *, hidden=""):
        """Add a token; returns the text that is now certain.

        data : bytes             what the token adds to the answer
        hidden : str             text of a control token: it can be, or be part of, a stop string,
                                 but is never shown
        """
        text = self._decoder.decode(data)
        self._text += text + hidden
        self._shown += [True] * len(text) + [False] * len(hidden)
        return self._release()

    def finish(self):
        """The tail, when no token follows. Empty after a stop string."""
        if self.stop is not None:
            return ""
        text = self._decoder.decode(b"", final=True)
        self._text += text
        self._shown += [True] * len(text)
        return self._release() + ("" if self.stop is not None else self._take(len(self._text)))

    def _release(self):
        if not self._stops or self.stop is not None:
            return self._take(len(self._text) if self.stop is None else 0)
        found = self._first_stop()
        if found is not None:
            begin, self.stop = found
            shown = self._take(begin)
            self._text, self._shown = "", []
            return shown
        return self._take(self._n_certain())

    def _take(self, n):
        """Remove the first n characters held back; returns those that are shown."""
        taken = "".join(c for c, shown in zip(self._text[:n], self._shown) if shown)
        self._text, self._shown = self._text[n:], self._shown[n:]
        return taken

    def _views(self):
        """What stop strings are looked for in: (text, position of each character in `_text`).

        With the control tokens and, where there are any, without: the reader sees the latter.
        """
        everything = list(range(len(self._text)))
        yield self._text, everything
        if not all(self._shown):
            seen = [i for i in everything if self._shown[i]]
            yield "".join(self._text[i] for i in seen), seen

    def _first_stop(self):
        """(position, stop string) of the stop that is complete first, or None."""
        found = []
        for text, places in self._views():
            for stop in self._stops:
                at = text.find(stop)
                if at >= 0:
                    found.append((places[at + len(stop) - 1], places[at], stop))
        if not found:
            return None
        _, begin, stop = min(found)
        return begin, stop

    def _n_certain(self):
        """Characters in front of the first place where a stop string may have begun."""
        certain = len(self._text)
        for text, places in self._views():
            for stop in self._stops:
                for n in range(min(len(stop) - 1, len(text)), 0, -1):
                    if text.endswith(stop[:n]):
                        certain = min(certain, places[len(text) - n])
                        break
        return certain
