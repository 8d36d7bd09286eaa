"""Files as a whole: read where they have an end, written so that they appear under their name only when complete."""

import errno
import os
import stat
import tempfile
from contextlib import contextmanager


def read_file(path):
    """The bytes of a file.

    Raises
    ------
    OSError    it cannot be read; a folder, pipe or device stands there, which may have no end
    """
    with open(path, "rb", opener=_open_at_once) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "found a folder, pipe or device, expected a file", os.fspath(path))
        return file.read()


def _open_at_once(path, flags):
    return os.open(path, flags | os.O_NONBLOCK)  # a pipe would wait for its writer


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
