"""Which layers keep the keys of an indexer beside what attention keeps."""

import numpy as np


def indexed_layers(file, n_layer):
    """A flag a layer, from `attention.indexer.types`: list of bool, or None where the file has no such key."""
    key = f"{file.architecture}.attention.indexer.types"
    if key not in file.metadata:
        return None
    flags = file.get(key)
    if not isinstance(flags, np.ndarray):
        flags = np.full(n_layer, flags if isinstance(flags, bool) else file.get_int(key, lo=0, hi=1))
    if flags.dtype.kind not in "biu" or len(flags) < n_layer:
        file.refuse(key, flags, f"{n_layer} flags, one a layer")
    return [bool(flag) for flag in flags[:n_layer]]


def index_elements(file, n_layer):
    """F16 values that all indexers together keep a position; 0 where there is none."""
    arch = file.architecture
    dim = file.get_int(f"{arch}.attention.indexer.key_length", 0, lo=0)
    if not dim or not file.get_int(f"{arch}.attention.indexer.top_k", 0, lo=0):
        return 0
    flags = indexed_layers(file, n_layer)
    if flags is None:
        flags = [any(f"blk.{il}.indexer.{name}.weight" in file.tensors for name in ("attn_k", "k_proj")) for il in range(n_layer)]
    return dim * sum(flags)
