"""Files as a whole: read where they have an end, written so that they appear under their name only when complete."""

import contextlib
import errno
import os
import stat
import tempfile

MAX_PREFIX_BYTES = 200  # of a temporary file's name, which may have 255 with what is added


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


@contextlib.contextmanager
def whole_file(path):
    """Yield a binary file in the folder of `path`. On success it takes that name, on any exception it is removed.

    A symbolic link stays one: the file it points to is replaced. Its rights are those of any new file.

    Raises
    ------
    OSError    it cannot be written; a folder, pipe or device stands there, which is left alone. Its file name
               is `path`
    """
    path = _real(path)
    fd, temporary = _new_file_beside(path)
    try:
        with os.fdopen(fd, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        if isinstance(error, OSError) and error.errno is not None and error.filename in (None, temporary):
            raise OSError(error.errno, error.strerror, path) from None
        raise


def check_writable(path):
    """OSError as from `whole_file` where `path` cannot be written; asked before the work that is to fill it."""
    fd, temporary = _new_file_beside(_real(path))
    os.close(fd)
    os.unlink(temporary)


def _real(path):
    try:
        return os.path.realpath(path)
    except OSError as error:  # the current folder is gone
        raise OSError(error.errno, error.strerror, os.fspath(path)) from None


def _new_file_beside(path):
    """(descriptor, path) of a file in the folder of `path` that is to become `path`."""
    try:
        is_file = stat.S_ISREG(os.stat(path).st_mode)
    except FileNotFoundError:
        is_file = True
    if not is_file:
        raise FileExistsError(errno.EEXIST, "found a folder, pipe or device, expected a file", path)
    folder, name = os.path.split(path)
    short = os.fsdecode(os.fsencode(name)[:MAX_PREFIX_BYTES])
    try:
        return tempfile.mkstemp(prefix=f".{short}.", suffix=".part", dir=folder)
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None  # names no file that nobody asked for


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask
