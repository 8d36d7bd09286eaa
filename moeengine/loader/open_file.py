"""Opening a model file for reading: one descriptor, its size, and a typed error when that fails."""

import errno
import os
import stat
from pathlib import Path

from moeengine.errors import GGUFError
from moeengine.loader.messages import shown_path


def open_regular(path):
    """Open a regular file for reading and return (descriptor, size in bytes).

    The caller closes the descriptor. Never blocks on a pipe or a device.

    Raises
    ------
    GGUFError   no such file, no permission, a directory, not a regular file
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as err:  # ValueError: a NUL byte in the path
        raise GGUFError(f"{shown_path(path)}: cannot open the model file: {_reason(err)}") from None
    try:
        status = os.fstat(fd)
        if stat.S_ISDIR(status.st_mode):
            raise GGUFError(f"{shown_path(path)}: found a directory, expected a GGUF file")
        if not stat.S_ISREG(status.st_mode):
            raise GGUFError(
                f"{shown_path(path)}: found a pipe, socket or device, expected a GGUF file"
            )
    except BaseException:
        os.close(fd)
        raise
    return fd, status.st_size


def absolute(path):
    """The path as an absolute one, symlinks kept; TypeError when it is no path at all."""
    path = os.fsdecode(path)
    if not path:  # would be the current folder
        raise GGUFError("model file: found an empty path, expected the path of a GGUF file")
    try:
        return Path(os.path.abspath(path))
    except OSError as err:
        raise GGUFError(
            f"{shown_path(path)}: cannot find the current folder: {err.strerror}"
        ) from None


def _reason(err):
    if isinstance(err, ValueError):
        return "the path holds a NUL byte"
    known = {
        errno.ENOENT: "no such file",
        errno.EACCES: "no permission to read it",
        errno.EPERM: "no permission to read it",
        errno.ENOTDIR: "a part of the path is not a directory",
        errno.ELOOP: "its symbolic links form a loop",
    }
    return known.get(err.errno, err.strerror)
