"""Sets up a process before it loads numpy: the memory that glibc keeps, and the kernels of OpenBLAS.

A record of a camera episode takes megabytes. By default, glibc gets memory of that size from the system each time and
gives it back, and the system clears every page: up to half of the time of a job that only checks records.

The OpenBLAS in numpy 1.26, which TensorFlow 2.15 needs, does not know Intel's latest processors. It uses kernels from
2004 for them, which are five to ten times slower (https://github.com/OpenMathLib/OpenBLAS/issues/4267). Numpy 2 has a
newer one.
"""

from __future__ import annotations

import importlib.metadata
import os
from pathlib import Path

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # the options' numbers in glibc's malloc.h
_KEPT = 128 << 20
_MAX = 32 << 20  # glibc accepts no more


def keep_freed_memory() -> None:
    """Makes this process keep up to 128 MB of freed memory, and use it for values of up to 32 MB.

    Does nothing if the C library is not glibc, or if the user has set one of its variables (`MALLOC_TRIM_THRESHOLD_`).
    """
    import ctypes

    if any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _MAX)
        mallopt(_TRIM_THRESHOLD, _KEPT)


_VARIABLE = "OPENBLAS_CORETYPE"
_KERNELS = {
    "SkylakeX": {"avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"},
    "Haswell": {"avx2", "fma"},
}
"""Kernels, the fastest first, and the processor features that they need."""


def choose_kernels(cpuinfo: Path = Path("/proc/cpuinfo")) -> None:
    """Sets OpenBLAS's environment variable if this numpy would choose slow kernels; keeps a value set by the user.

    Affects this process, if numpy is not imported yet, and its child processes.

    Args:
      cpuinfo: Linux's description of the processors.
    """
    if _VARIABLE in os.environ or not importlib.metadata.version("numpy").startswith("1."):
        return
    try:
        said = cpuinfo.read_text()
    except OSError:
        return
    first = dict(line.split(":", 1) for line in said.partition("\n\n")[0].splitlines() if ":" in line)
    processor = {name.strip(): set(words.split()) for name, words in first.items()}
    if processor.get("vendor_id") != {"GenuineIntel"}:
        return
    for kernels, needed in _KERNELS.items():
        if needed <= processor.get("flags", set()):
            os.environ[_VARIABLE] = kernels
            return
