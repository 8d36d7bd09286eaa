"""Token ids to text, one at a time: only whole characters come out, and nothing is lost at the end."""

import codecs


class TextStream:
    """Incremental decoder. The pieces it returns, put together, are what `Tokenizer.decode` gives for the same ids.

    Made by `Tokenizer.stream`.

    Parameters
    ----------
    tokenizer : Tokenizer
    special : bool     show control tokens as their text
    at_start : bool    the ids begin a text
    prefixed : None, or set of int   the tokens after which encoding puts a space, as it does at the start; the space is
                                     dropped again. None: it never does
    """

    def __init__(self, tokenizer, special, at_start, prefixed):
        self._tokenizer = tokenizer
        self._special = special
        self._prefixed = prefixed
        self._drops_space = at_start
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token_id):
        """Take one id.

        Returns
        -------
        str    the characters that are complete now; often empty

        Raises
        ------
        ConfigError    no such token
        """
        piece = self._tokenizer.token_bytes(token_id, special=self._special)
        if self._prefixed is not None:
            is_whole = token_id in self._prefixed
            if self._drops_space and not is_whole and piece.startswith(b" "):
                piece = piece[1:]
            self._drops_space = is_whole
        return self._decoder.decode(piece)

    def flush(self):
        """End the text: bytes of a character that never became complete come out as U+FFFD."""
        return self._decoder.decode(b"", final=True)
