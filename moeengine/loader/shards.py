"""Which files make up a model: `PREFIX-00001-of-0000N.gguf` sets, folders, symbolic links."""

import os
import re
from pathlib import Path

from moeengine.errors import GGUFError
from moeengine.loader.messages import at_tensor, escaped, plural, shown_path

SHARD_NAME = re.compile(r"(?P<prefix>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)
# A vision or audio projector beside a model is no model of its own.
PROJECTOR_NAME = re.compile(r"mmproj.*\.gguf", re.IGNORECASE | re.DOTALL)
MAX_LISTED = 8

COUNT_KEY = "split.count"
NUMBER_KEY = "split.no"
TENSORS_KEY = "split.tensors.count"


def model_in_folder(folder):
    """The one GGUF model of a folder: its file, or any shard of its set.

    Raises
    ------
    GGUFError   no GGUF in it, or more than one model; the message lists them
    """
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(".gguf"))
    except OSError as err:
        raise GGUFError(f"{shown_path(folder)}: cannot list the folder: {err.strerror}") from None
    models = {}
    for name in names:
        shard = SHARD_NAME.fullmatch(name)
        if not PROJECTOR_NAME.fullmatch(name):
            models.setdefault((shard["prefix"], shard["count"]) if shard else name, name)
    if not models:
        raise GGUFError(
            f"{shown_path(folder)}: found a folder without a .gguf model, expected one in it"
        )
    if len(models) > 1:
        raise GGUFError(
            f"{shown_path(folder)}: found {len(models)} models ({_listed(models.values())}), "
            "expected one; give the path of the file"
        )
    return folder / next(iter(models.values()))


def shard_paths(path, split_count):
    """All files of the set that `path` belongs to, in order.

    Parameters
    ----------
    path : Path         absolute; the shard that was given
    split_count : int   its `split.count`, 0 when it has none

    Returns
    -------
    list of Path        [path] for a file that is no part of a set. Siblings are looked for beside
                        `path`, then beside the file it links to.

    Raises
    ------
    GGUFError   the name and `split.count` disagree, or shards are missing (named in full)
    """
    places = [
        (place, SHARD_NAME.fullmatch(place.name))
        for place in dict.fromkeys((path, Path(os.path.realpath(path))))
    ]
    places = [(place.parent, shard) for place, shard in places if shard]
    if not places:
        if split_count > 1:
            raise GGUFError(
                f"{shown_path(path)}: found one of {split_count} shards ({COUNT_KEY}), expected a "
                f"name like NAME-00001-of-{split_count:05d}.gguf so that the others can be found"
            )
        return [path]
    named = int(places[0][1]["count"])
    if named != max(split_count, 1):
        raise GGUFError(
            f"{shown_path(path)}: found {COUNT_KEY} {split_count or 'absent'}, "
            f"expected {named}, as the name says; the file was renamed or comes from another set"
        )
    if named <= 1:
        return [path]
    return _existing_shards(places, named)


def check_set(files):
    """Check that the shards belong together and are complete.

    Parameters
    ----------
    files : list of GGUFFile   in the order of their names, two or more

    Raises
    ------
    GGUFError   wrong number or count in a shard, different models, a tensor twice, tensors missing
    """
    first, n_files = files[0], len(files)
    for i, file in enumerate(files):
        for key, expected in ((COUNT_KEY, n_files), (NUMBER_KEY, i)):
            if (found := file.get_int(key)) != expected:
                raise GGUFError(
                    f"{shown_path(file.path)}: key '{key}': found {found}, expected {expected}; "
                    "the shards are not of one set, or a shard is there twice"
                )
        for key in ("general.architecture", "general.name", TENSORS_KEY):
            if key in file.metadata and key in first.metadata and file.get(key) != first.get(key):
                file.refuse(
                    key, file.get(key), f"{first.get(key)!r} as in {shown_path(first.path)}"
                )
    owner = {}
    for file in files:
        for name in file.tensors:
            if name in owner:
                raise GGUFError(
                    f"{at_tensor(file.path, name)}: found a second time, already in "
                    f"{shown_path(owner[name].path)}; expected every tensor in one shard"
                )
            owner[name] = file
    total = first.get_int(TENSORS_KEY, None)
    if total is not None and total != len(owner):
        raise GGUFError(
            f"{shown_path(first.path)}: found {plural(len(owner), 'tensor')} in {n_files} shards, "
            f"expected {total} ({TENSORS_KEY})"
        )


def _existing_shards(places, count):
    paths, missing = [], []
    for number in range(1, count + 1):
        names = [
            folder / f"{shard['prefix']}-{number:05d}-of-{count:05d}.gguf"
            for folder, shard in places
        ]
        found = next((name for name in names if os.path.lexists(name)), None)
        (paths if found else missing).append(found or names[0])
        if len(missing) > MAX_LISTED:  # a count that is far off is not worth more looking
            break
    if missing:
        listed = ", ".join(map(shown_path, missing[:MAX_LISTED]))
        raise GGUFError(
            f"{shown_path(places[0][0])}: found shards missing, expected all {count}: there is no "
            f"{listed}{' and more' if len(missing) > MAX_LISTED else ''}"
        )
    return paths


def _listed(names):
    names = [escaped(name) for name in names]
    rest = len(names) - MAX_LISTED
    return ", ".join(names[:MAX_LISTED]) + (f" and {rest} more" if rest > 0 else "")
