"""Lets glibc keep the memory of freed records.

A record of a camera episode takes megabytes. By default, glibc gets memory of that size from the system each time and
gives it back, and the system clears every page: up to half of the time of a job that only checks records.
"""

from __future__ import annotations

import os

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # the options' numbers in glibc's malloc.h
_KEPT = 128 << 20
_LARGEST = 32 << 20  # glibc accepts no more


def keep_freed_memory() -> None:
    """Makes this process keep up to 128 MB of freed memory, and use it for values of up to 32 MB.

    Does nothing if the C library is not glibc, or if the user has set one of its variables (`MALLOC_TRIM_THRESHOLD_`).
    """
    import ctypes

    if any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _LARGEST)
        mallopt(_TRIM_THRESHOLD, _KEPT)
