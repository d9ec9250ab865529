"""Which of its kernels OpenBLAS takes, the library in numpy that multiplies matrices.

That of numpy 1.26, which TensorFlow 2.15 needs, does not know Intel's latest processors, and takes kernels of 2004 for
them, which are five to ten times slower (https://github.com/OpenMathLib/OpenBLAS/issues/4267). Numpy 2 has a later one.
"""

from __future__ import annotations

import importlib.metadata
import os
from pathlib import Path

_VARIABLE = "OPENBLAS_CORETYPE"
_KERNELS = {
    "SkylakeX": {"avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"},
    "Haswell": {"avx2", "fma"},
}
"""Kernels, the fastest first, and what the processor has to know for them."""


def choose_kernels(cpuinfo: Path = Path("/proc/cpuinfo")) -> None:
    """Tells OpenBLAS by an environment variable, if need be, what later ones find out by themselves.

    It counts for this process, if numpy is not imported yet, and for those that it starts. What the user set stays.

    Args:
      cpuinfo: what Linux says of the processors.
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
