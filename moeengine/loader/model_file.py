"""A model as it lies on disk: all shards of a set, mapped read-only, with one table of tensors."""

import difflib
import math
import os
import re
from functools import cached_property

import numpy as np

from moeengine.errors import ClosedError, GGUFError, SupplyError
from moeengine.loader.gguf_file import scan_gguf
from moeengine.loader.mapped_file import MappedFile, page_size
from moeengine.loader.messages import at_tensor, quoted, shown_path
from moeengine.loader.metadata import TypedMetadata
from moeengine.loader.open_file import absolute
from moeengine.loader.shards import COUNT_KEY, check_set, model_in_folder, shard_paths
from moeengine.loader.tensor_info import require_weight_type

MAX_SPLIT_COUNT = 99999  # five digits in the name
_EXPERTS = re.compile(r"blk\.(\d+)\.ffn_(?:gate_up|gate|up|down)_exps", re.ASCII)


class ModelFile(TypedMetadata):
    """An open model; a context manager. Made by `ModelFile.open`.

    Attributes
    ----------
    path : Path               first file
    files : list of GGUFFile  one a shard, in order
    maps : list of MappedFile same order; a reference to one keeps its addresses valid; empty after close
    metadata : dict           of the first shard, which holds all of it
    tensors : dict            name -> TensorInfo of all shards; `shard` indexes `files` and `maps`
    """

    def __init__(self, files, maps):
        self.moved = {}  # name -> uint8 (n_bytes,) of tensors that were read into memory instead
        self.files = files
        self.maps = maps
        self.path = files[0].path
        self.metadata = files[0].metadata
        self.tensors = {name: info for file in files for name, info in file.tensors.items()}

    @classmethod
    def open(cls, path):
        """Open a model from a file, any shard of a set, or a folder that holds one model.

        Every tensor is checked to lie inside its file. No tensor data is read.

        Raises
        ------
        GGUFError           a file cannot be read or is not sound, or the set is not complete
        UnsupportedError    a tensor has a quant type that is not known
        SupplyError         a file cannot be mapped
        """
        path = absolute(path)
        if os.path.isdir(path):
            path = model_in_folder(path)
        maps = []
        try:
            given = _map_and_scan(path, maps, shard=0)
            count = given.get_int(COUNT_KEY, 0, lo=0, hi=MAX_SPLIT_COUNT)
            paths = shard_paths(path, count)
            if len(paths) == 1:
                return cls([given], maps)
            given_map = maps.pop()
            given_map.close()
            files = [_map_and_scan(shard_path, maps, shard=i) for i, shard_path in enumerate(paths)]
            check_set(files)
            return cls(files, maps)
        except BaseException:
            for mapped in maps:
                mapped.close()
            raise

    @property
    def architecture(self):
        """`general.architecture`; GGUFError when absent."""
        return self.get_str("general.architecture")

    @property
    def total_bytes(self):
        """Bytes of all files together."""
        return sum(file.file_size for file in self.files)

    @cached_property
    def _first_skipped(self):
        """The first layer of next-token prediction; no layer has that number where there is none."""
        arch = self.get_str("general.architecture", "")
        n_nextn = self.get_int(f"{arch}.nextn_predict_layers", 0, lo=0)
        return self.get_int(f"{arch}.block_count", 0, lo=0) - n_nextn if n_nextn else math.inf

    def is_skipped(self, name):
        """True for a tensor of the last layers that predict tokens after the next (`nextn_predict_layers`): never used."""
        parts = name.split(".", 2)
        return parts[0] == "blk" and len(parts) > 1 and parts[1].isdecimal() and int(parts[1]) >= self._first_skipped

    @property
    def tensor_bytes(self):
        """Bytes of all tensors together, but for skipped ones."""
        return sum(info.n_bytes for name, info in self.tensors.items() if not self.is_skipped(name))

    def tensor(self, name, shape=None):
        """The TensorInfo of a tensor.

        Parameters
        ----------
        shape : tuple of int, optional   expected row-major shape; leading ones count for nothing,
                                         since some writers drop them

        Raises
        ------
        GGUFError   no such tensor (similar names are listed), or another shape
        """
        info = self.tensors.get(name)
        if info is None:
            similar = difflib.get_close_matches(name, self.tensors, n=3, cutoff=0.8)
            hint = f"; found the similar {', '.join(map(quoted, similar))}" if similar else ""
            raise GGUFError(
                f"{at_tensor(self.path, name)}: not found, expected to be present{hint}"
            )
        if shape is not None and _trimmed(info.shape) != _trimmed(shape):
            raise GGUFError(
                f"{at_tensor(self.files[info.shard].path, name)}: "
                f"found shape {info.shape}, expected {tuple(shape)}"
            )
        return info

    def weight(self, name, shape=None):
        """`tensor` for one that is multiplied with: UnsupportedError when no kernel has its type."""
        info = self.tensor(name, shape)
        require_weight_type(info, self.files[info.shard].path)
        return info

    def address(self, name):
        """Address of a tensor's first byte; valid while someone refers to its MappedFile, or to `raw`."""
        info = self.tensor(name)
        if name in self.moved:
            return self.moved[name].ctypes.data
        return self._map(info).address + info.offset

    def raw(self, name):
        """A tensor's bytes as they stand in the file.

        Returns
        -------
        uint8 (*shape[:-1], row_bytes), read-only; a view that keeps the mapping alive after `close`
        """
        info = self.tensor(name)
        flat = self.moved.get(name)
        if flat is None:
            flat = np.frombuffer(self._map(info), np.uint8, info.n_bytes, info.offset)
        return flat.reshape(*info.shape[:-1], info.row_bytes)

    def head(self, name, n):
        """The first n bytes of a tensor, or all it has: bytes. Also after the mapping was released."""
        info = self.tensor(name)
        n = min(n, info.n_bytes)
        if name in self.moved:
            return self.moved[name][:n].tobytes()
        mapped = self._map(info)
        if mapped.address:
            return np.frombuffer(mapped, np.uint8, n, info.offset).tobytes()
        return os.pread(mapped.fd, n, info.offset)

    def take_missing(self):
        """What could not be read through the mappings since the last call, in words; "" where all could.

        Raises
        ------
        SupplyError    a mapping cannot be restored
        """
        for shard, mapped in enumerate(self.maps):
            offset = mapped.take_missing()
            if offset >= 0:
                size = os.fstat(mapped.fd).st_size
                return (
                    f"{self._place(shard, offset)}: {shown_path(mapped.path)}: bytes from {offset} on could not be read: "
                    f"found a file of {size} bytes, expected {mapped.size}; was it changed while in use?"
                )
        return ""

    def require_whole(self):
        """For who has read weights through `raw`: SupplyError where a file lost bytes since it was opened."""
        missing = self.take_missing()
        for mapped in self.maps:
            size = os.fstat(mapped.fd).st_size
            if not missing and size < mapped.size:  # zeros up to the end of a page are told by nobody
                missing = f"{shown_path(mapped.path)}: found a file of {size} bytes, expected {mapped.size}; was it changed while in use?"
        if missing:
            raise SupplyError(missing)

    def _place(self, shard, offset):
        """Where a byte of a file belongs: layer and expert, or tensor."""
        for info in self.tensors.values():
            if info.shard == shard and info.offset <= offset + page_size - 1 and offset < info.offset + info.n_bytes:
                first = max(0, offset - info.offset)
                match = _EXPERTS.match(info.name)
                if match and len(info.shape) == 3:
                    return f"layer {match[1]}, expert {first * info.shape[0] // info.n_bytes} (tensor {quoted(info.name)})"
                return f"tensor {quoted(info.name)}"
        return "header"

    def n_views(self):
        """Views of the mappings that still exist."""
        return sum(mapped.n_views for mapped in self.maps)

    def unmap(self):
        """Give up the mappings, for a caller that knows no address into them is in use.

        Returns
        -------
        int   0 when done; otherwise the number of views that still exist, and nothing is done
        """
        n = self.n_views()
        if n == 0:
            for mapped in self.maps:
                mapped.unmap()
        return n

    def close(self):
        """Close the descriptors, let go of the mappings. Views handed out stay valid. Twice is fine."""
        maps, self.maps, self.moved = self.maps, [], {}
        for mapped in maps:
            mapped.close()

    @property
    def closed(self):
        return not self.maps

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    def __repr__(self):
        return (
            f"ModelFile({str(self.path)!r}, {len(self.files)} files, {len(self.tensors)} tensors)"
        )

    def _map(self, info):
        if not self.maps:
            raise ClosedError(f"{shown_path(self.path)}: the model file is closed")
        return self.maps[info.shard]


def _map_and_scan(path, maps, *, shard):
    """Map one file, scan its header through the same descriptor, and append the map to `maps`."""
    mapped = MappedFile(path)
    maps.append(mapped)
    return scan_gguf(mapped.fd, mapped.path, mapped.size, shard=shard)


def _trimmed(shape):
    shape = tuple(shape)
    while len(shape) > 1 and shape[0] == 1:
        shape = shape[1:]
    return shape
