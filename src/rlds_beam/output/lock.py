"""Allows only one command at a time to write into a local output directory.

Uses the operating system's lock (`flock`) on a file in the directory, which ends with its process. A bucket has no such
lock, and a network file system only if it is mounted with one. There the plan decides (`manifest.commit_dataset`): a
command whose plan was replaced while it ran does not exit with 0.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Iterator

from rlds_beam import storage
from rlds_beam.errors import DiskError, UsageError
from rlds_beam.output.files import LOCK

_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EROFS, errno.EACCES, errno.EPERM}
"""The errors of a file system that has no locks or is not writable."""

_NO_FILE = {errno.ELOOP, errno.EISDIR, errno.ENXIO}
"""The errors of opening a link, a directory, or a socket."""


@contextlib.contextmanager
def lock_output(directory: str) -> Iterator[None]:
    """Holds the lock of an output directory, which is created if needed.

    Raises:
      UsageError: another command holds it, or the directory cannot be created.
    """
    if storage.scheme(directory) is not None:
        yield
        return
    try:
        new = not os.path.isdir(directory)
        os.makedirs(directory, exist_ok=True)
        descriptor = take(os.path.join(directory, LOCK))
    except BlockingIOError:
        raise UsageError(
            f"another rlds-beam is writing into {directory}: wait until it ends, or choose another directory"
        ) from None
    except OSError as error:
        disk = DiskError.of(error.errno or 0, directory)
        raise UsageError(str(disk or f"cannot write to {directory}: {error.strerror or error}")) from error
    try:
        yield
    finally:
        release(os.path.join(directory, LOCK), descriptor)
        if new:  # the job was refused: nothing was written
            storage.remove_empty(directory)


def take(path: str, wait: bool = False) -> int | None:
    """Creates and locks a file.

    Args:
      path: the file.
      wait: whether to wait until another process releases it.

    Returns:
      A descriptor that holds the lock; None if locks are not supported.

    Raises:
      BlockingIOError: another process holds it.
      UsageError: something else has this name: a link, a directory, or a FIFO.
    """
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return None
            if error.errno in _NO_FILE:
                raise _no_file(path) from error
            raise
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise _no_file(path)
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.stat(path), os.fstat(descriptor)):
                    return descriptor
        except (BlockingIOError, UsageError):
            os.close(descriptor)
            raise
        except OSError as error:
            os.close(descriptor)
            if error.errno in _NO_LOCKS:
                return None
            raise
        os.close(descriptor)  # the previous holder has removed the file


def release(path: str, descriptor: int | None) -> None:
    """Removes a file and its lock."""
    if descriptor is not None:
        with contextlib.suppress(OSError):
            os.remove(path)
        os.close(descriptor)


def _no_file(path: str) -> UsageError:
    return UsageError(f"{path} is to be a lock, but is not a regular file: remove it")
