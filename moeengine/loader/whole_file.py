"""Writing a file that appears under its name only when it is whole."""

import errno
import os
import tempfile
from contextlib import contextmanager


@contextmanager
def whole_file(path):
    """Yield a binary file in the folder of `path`. On success it takes that name, on any exception it is removed.

    A symbolic link stays one: the file it points to is replaced. Its rights are those of any new file.

    Raises
    ------
    OSError    it cannot be written; a folder, pipe or device stands there, which is left alone
    """
    path = os.path.realpath(path)
    if os.path.exists(path) and not os.path.isfile(path):
        raise FileExistsError(errno.EEXIST, "found a folder, pipe or device, expected a file", path)
    folder, name = os.path.split(path)
    try:
        fd, temporary = tempfile.mkstemp(prefix=f".{name}.", suffix=".part", dir=folder)
    except OSError as error:
        raise type(error)(error.errno, error.strerror, path) from None  # names no file that nobody asked for
    try:
        with os.fdopen(fd, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask
