"""One command at a time writes into a local output directory.

The lock is the operating system's (`flock`) on a file in the directory: it ends with the process that holds it, however
that ends. A bucket has no such lock, and a network file system only if it is mounted with one; there the plan decides
(`manifest.commit_dataset`): a command whose plan was replaced while it ran does not end with exit code 0.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator

from rlds_beam import storage
from rlds_beam.errors import DiskError, UsageError
from rlds_beam.output.files import LOCK

_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EROFS, errno.EACCES, errno.EPERM}
"""What a file system says that knows no locks, or that we cannot write to."""


@contextlib.contextmanager
def locked(directory: str) -> Iterator[None]:
    """Holds the lock of an output directory, which is made if need be.

    Raises:
      UsageError: another command holds it, or the directory cannot be made.
    """
    if storage.scheme(directory) is not None:
        yield
        return
    try:
        new = not os.path.isdir(directory)
        os.makedirs(directory, exist_ok=True)
        descriptor = _take(os.path.join(directory, LOCK))
    except OSError as error:
        disk = DiskError.of(error.errno or 0, directory)
        raise UsageError(str(disk or f"{directory} cannot be written to: {error}")) from error
    try:
        yield
    finally:
        if descriptor is not None:
            with contextlib.suppress(OSError):
                os.remove(os.path.join(directory, LOCK))
            os.close(descriptor)
        if new:  # and refused: nothing was written
            storage.remove_empty(directory)


def _take(path: str) -> int | None:
    """A descriptor with the lock; None where there are no locks."""
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return None
            raise
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.stat(path), os.fstat(descriptor)):
                    return descriptor
        except BlockingIOError:
            os.close(descriptor)
            raise UsageError(
                f"another rlds-beam is writing into {os.path.dirname(path)}: wait until it ends, or name another "
                "directory"
            ) from None
        except OSError as error:
            os.close(descriptor)
            if error.errno in _NO_LOCKS:
                return None
            raise
        os.close(descriptor)  # who held it before removed the file meanwhile
