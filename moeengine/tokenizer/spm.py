"""SentencePiece BPE, `tokenizer.ggml.model` "llama": neighbours are joined by score, unknown characters become bytes.

The `tokenizers` package ranks pairs where SentencePiece scores results, which differs when two tokens have one score or
a character is no token by itself; so the merging is done here.
Source: llama.cpp llama-vocab.cpp, llm_tokenizer_spm_session.

A text is first parted wherever two neighbouring characters are next to each other in no token: nothing can be joined
across such a place, so each part is merged by itself and most parts are remembered from before.
"""

import heapq

from moeengine.errors import GGUFError
from moeengine.tokenizer.raw_bpe import SPACE

MAX_REMEMBERED = 1 << 16  # parts
MAX_REMEMBERED_LENGTH = 64  # characters of a part


class SentencePiece:
    """Encoder of a SentencePiece vocabulary.

    Parameters
    ----------
    vocab : Vocab    with scores
    adds_space_prefix : bool

    Raises
    ------
    GGUFError    no scores
    """

    def __init__(self, vocab, adds_space_prefix):
        if vocab.scores is None:
            raise GGUFError(
                f"{vocab.where}: key 'tokenizer.ggml.scores': not found, expected to be present"
            )
        table = vocab.table
        self._adds_space_prefix = adds_space_prefix
        hidden = table.control | table.bad | table.byte_ids.keys()
        self._ids = {text: i for text, i in table.ids.items() if i not in hidden}
        self._scores = vocab.scores.tolist()
        self._pairs = {text[k : k + 2] for text in self._ids for k in range(len(text) - 1)}
        self._byte_ids = [_byte_id(table, byte) for byte in range(256)]
        self._remembered = {}

    def encode(self, text, after_special):
        """Ids of a stretch of plain text; after a special token, and at the start, a space is put before it.

        Returns
        -------
        list of int
        """
        text = text.replace(" ", SPACE)
        if after_special and self._adds_space_prefix:
            text = SPACE + text
        pairs, ids, start = self._pairs, [], 0
        for end in range(1, len(text) + 1):
            if text[end - 1 : end + 1] not in pairs:
                ids += self._encode_part(text[start:end])
                start = end
        return ids

    def _encode_part(self, part):
        ids = self._remembered.get(part)
        if ids is None:
            ids = [i for piece in self._merge(part) for i in self._piece_ids(piece)]
            if len(part) <= MAX_REMEMBERED_LENGTH:
                if len(self._remembered) >= MAX_REMEMBERED:
                    self._remembered.clear()
                self._remembered[part] = ids
        return ids

    def _merge(self, part):
        """The pieces left when no two neighbours make a token: highest score first, then leftmost.

        A piece is known by its first character's place; `ends` says where it ends, 0 once it was joined to its left.
        """
        n = len(part)
        ids, scores = self._ids, self._scores
        ends = list(range(1, n + 1))
        before = list(range(-1, n - 1))  # place of the piece to the left
        queue = []

        def propose(left, right):
            token = ids.get(part[left : ends[right]])
            if token is not None:
                heapq.heappush(queue, (-scores[token], left, right, ends[right]))

        for place in range(n - 1):
            propose(place, place + 1)
        while queue:
            _, left, right, end = heapq.heappop(queue)
            if not ends[left] or ends[left] != right or ends[right] != end:
                continue  # one of the two has grown or is gone
            ends[left], ends[right] = end, 0
            if end < n:
                before[end] = left
                propose(left, end)
            if left > 0:
                propose(before[left], left)
        place = 0
        while place < n:
            yield part[place : ends[place]]
            place = ends[place]

    def _piece_ids(self, piece):
        token = self._ids.get(piece)
        if token is not None:
            return [token]
        return [i for byte in piece.encode() if (i := self._byte_ids[byte]) is not None]


def _byte_id(table, byte):
    """The token of a byte: `<0xHH>`, else the character itself, else the unknown token, else None."""
    for text in (f"<0x{byte:02X}>", chr(byte) if byte < 128 else ""):
        if text in table.ids:
            return table.ids[text]
    return table.special.get("unk")
