"""Giving up the mapping of a model file, once every weight is read from elsewhere."""

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Release:
    """Whether the mapping was given up, how many pointers kept it, and why, in words."""

    done: bool
    n_pointers: int
    why: str


def file_spans(mapped, maps_file="/proc/self/maps"):
    """Address ranges of this process that show the file of a MappedFile, by the process's own map.

    Returns
    -------
    list of (first, end)      end exclusive

    Raises
    ------
    OSError      the system does not show the map
    """
    status = os.fstat(mapped.fd)
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
    spans = []
    with open(maps_file, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            span, _, _, dev, inode = line.split(maxsplit=5)[:5]
            if dev == device and int(inode) == status.st_ino:
                first, _, end = span.partition("-")
                spans.append((int(first, 16), int(end, 16)))
    return spans


def release_mapping(model_file, model):
    """Unmap the model file where no weight that is read lies in the mapping; the supply is set before.

    Returns
    -------
    Release
    """
    try:
        spans = [span for mapped in model_file.maps for span in file_spans(mapped)]
    except OSError as error:
        return Release(False, 0, f"the system does not show what is mapped: {error.strerror}")
    pointers = model.pointers + (model.expert_pointers() if model.supply.reads_mapping() else [])
    inside = [name for name, address in pointers if any(a <= address < b for a, b in spans)]
    if inside:
        return Release(False, len(inside), f"{len(inside)} weights are read from it, such as {inside[0]}")
    model.forget_experts()
    n_views = model_file.unmap()
    if n_views:
        return Release(False, n_views, f"{n_views} views of it are in use")
    return Release(True, 0, f"{sum(b - a for a, b in spans) / 1e6:.0f} MB given up; files opened anew")
