"""What a timeline keeps for layers that compress keys (`attention.compress_ratios`): how much, and laid out how.

A layer of ratio r keeps one key, which is its value too, of every r positions. Keys lie in the KV cache as so many values a
position, whole ones where r is at most the 64 positions of a tile, else halves. Fixed in size is what the next keys are
made of, and the last positions' own keys.
"""

from dataclasses import dataclass

RATIOS = (0, 4, 128)
MAX_WINDOW = 1 << 16


@dataclass(frozen=True)
class CompressedShape:
    """Sizes of one layer, in elements.

    ratio : int         positions of one key; 0: none are compressed
    dim : int           of a key
    indexer_dim : int   of an indexer's key; ratio 4 has one beside every key
    window : int        positions whose own keys are seen
    """

    ratio: int
    dim: int
    indexer_dim: int
    window: int

    @property
    def dims(self):
        """Lengths of the keys kept every `ratio` positions."""
        return {0: (), 4: (self.dim, self.indexer_dim), 128: (self.dim,)}[self.ratio]

    @property
    def kv_elements(self):
        """F16 values a position of the cache, one number a key."""
        return tuple(-(-dim // self.ratio) for dim in self.dims)

    @property
    def n_window(self):
        """float32 values that hold the F16 keys of the window."""
        return -(-self.window * self.dim // 2)

    @property
    def n_rows(self):
        """Positions from which the next compressed key is made: with ratio 4 the ones before take part."""
        return 2 * self.ratio if self.ratio == 4 else self.ratio

    def n_columns(self, dim):
        """Values a position from which keys of `dim` are made."""
        return 2 * dim if self.ratio == 4 else dim

    @property
    def n_state(self):
        """float32 values of fixed size: the window, then values and scores of n_rows positions for every key."""
        return self.n_window + sum(2 * self.n_rows * self.n_columns(dim) for dim in self.dims)


def compressed_layers(file, n_layer):
    """A CompressedShape a layer: tuple (n_layer,). GGUFError: a key is missing or out of range."""
    arch = file.architecture
    ratios = file.get_array(f"{arch}.attention.compress_ratios", kind="int").tolist()
    if len(ratios) < n_layer or any(ratio not in RATIOS for ratio in ratios[:n_layer]):
        file.refuse(f"{arch}.attention.compress_ratios", ratios, f"one of {', '.join(map(str, RATIOS))} a layer, {n_layer} of them")
    dim = file.get_int(f"{arch}.attention.key_length", lo=1, hi=1 << 16)
    indexer_dim = file.get_int(f"{arch}.attention.indexer.key_length", lo=1, hi=1 << 16)
    window = file.get_int(f"{arch}.attention.sliding_window", lo=1, hi=MAX_WINDOW)
    return tuple(CompressedShape(ratio, dim, indexer_dim, window) for ratio in ratios[:n_layer])
