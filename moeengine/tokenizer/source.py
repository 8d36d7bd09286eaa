"""Where the tokenizer's metadata is read from: a path, or a file that is open already."""

from moeengine.loader.gguf_file import open_gguf
from moeengine.loader.metadata import TypedMetadata
from moeengine.loader.open_file import absolute
from moeengine.loader.shards import COUNT_KEY, model_in_folder, shard_paths


def metadata_of(file):
    """The metadata that holds the vocabulary; of a set of shards, that of the first.

    Parameters
    ----------
    file : path of a file, shard or folder; or an open GGUFFile or ModelFile

    Raises
    ------
    GGUFError    the file cannot be read or is not sound
    """
    if isinstance(file, TypedMetadata):
        return file
    path = absolute(file)
    if path.is_dir():
        path = model_in_folder(path)
    found = open_gguf(path, tensors=False)
    first = shard_paths(path, found.get_int(COUNT_KEY, 0, lo=0))[0]
    return found if first == path else open_gguf(first, tensors=False)
