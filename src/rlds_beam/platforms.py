"""What differs between operating systems. Everything else uses what Linux and macOS have in common.

Each function asks the system whether it has something, and does without it if not. `ruff` refuses these modules and
functions elsewhere; mypy also checks the package as on macOS.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource
import sys
import time
from collections.abc import Iterator

_THREADS = "/proc/self/task"

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # the options' numbers in glibc's malloc.h


def count_cores() -> int:
    """The number of cores that this process may use, which a container may limit on Linux."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def keep_freed_memory(kept: int = 128 << 20, largest: int = 32 << 20) -> None:
    """Makes this process keep up to 128 MB (`kept`) of freed memory, and use it for values of up to 32 MB (`largest`).

    A record of a camera episode takes megabytes. By default, glibc gets memory of that size from the system each time
    and gives it back, and the system clears every page: half of the processor time of a job that only checks records.
    Does nothing if the C library is not glibc, or if the user has set one of its variables (`MALLOC_TRIM_THRESHOLD_`).
    """
    if os.name != "posix" or any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):
        return
    import ctypes

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, largest)  # glibc accepts no more than 32 MB
        mallopt(_TRIM_THRESHOLD, kept)


_IMPORTED = time.monotonic()


def process_seconds() -> float:
    """The seconds since this process started; since this module was imported if the system does not say."""
    if not hasattr(time, "CLOCK_BOOTTIME") or not os.path.exists("/proc/self/stat"):
        return time.monotonic() - _IMPORTED
    with open("/proc/self/stat") as file:
        started = int(file.read().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started)


def peak_memory_kb() -> int:
    """The peak of this process's resident memory, in KiB."""
    with contextlib.suppress(OSError, StopIteration), open("/proc/self/status") as file:
        # `ru_maxrss` includes that of its parent.
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM:"))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak // 1024 if sys.platform == "darwin" else peak


_NO_LOCKS = {
    errno.ENOLCK,
    errno.ENOSYS,
    errno.ENOTSUP,
    errno.EOPNOTSUPP,  # on macOS another number than ENOTSUP
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
}
"""The errors of a file system that has no locks or is not writable."""


@contextlib.contextmanager
def locked(path: str, wait: bool = False) -> Iterator[bool]:
    """Creates a file and holds its lock; removes it at the end. Yields whether there is a lock.

    Args:
      path: the file.
      wait: whether to wait until another process releases it.

    Raises:
      BlockingIOError: another process holds it.
      OSError: something else has this name, for example a link.
    """
    held: int | None = None
    while held is None:
        descriptor = None
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            with contextlib.suppress(FileNotFoundError):  # the previous holder has removed the file
                if os.path.samestat(os.stat(path), os.fstat(descriptor)):
                    held = descriptor
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            break
        finally:
            if descriptor is not None and descriptor != held:
                os.close(descriptor)
    try:
        yield held is not None
    finally:
        if held is not None:
            with contextlib.suppress(OSError):
                os.remove(path)
            os.close(held)


def reset_priority() -> None:
    """Makes the real-time threads of this process usual ones: for root, SVT-AV1 makes its own and ours real-time."""
    if sys.platform == "linux" and os.path.isdir(_THREADS):
        for thread in map(int, os.listdir(_THREADS)):
            with contextlib.suppress(ProcessLookupError):  # it has ended
                if os.sched_getscheduler(thread) == os.SCHED_FIFO:
                    os.sched_setscheduler(thread, os.SCHED_OTHER, os.sched_param(0))
