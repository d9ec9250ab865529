"""The header of NumPy's `.npy` files."""

from __future__ import annotations

import functools
import io
from typing import Any

import numpy as np


@functools.lru_cache(maxsize=1024)
def npy_header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """The header of a `.npy` file with an array in C order."""
    file = io.BytesIO()
    formats: Any = np.lib.format
    content = {"descr": formats.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    formats.write_array_header_1_0(file, content)
    return file.getvalue()
