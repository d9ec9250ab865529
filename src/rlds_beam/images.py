"""Images of an episode: encoded until a sink needs pixels."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, overload

import numpy as np


@dataclasses.dataclass(frozen=True)
class EncodedImages:
    """One image field of all steps, still PNG or JPEG.

    Attributes:
      data: object array [T] of `bytes`.
      shape: (height, width, channels) that the schema declares; None where unknown.
      dtype: numpy name of a pixel, `uint8` or `uint16`.
    """

    data: np.ndarray[Any, Any]
    shape: tuple[int | None, ...]
    dtype: str = "uint8"

    def __len__(self) -> int:
        return len(self.data)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.data)

    def __getitem__(self, index: Any) -> EncodedImages:
        """Steps by slice, index array or mask: again EncodedImages (never one single image)."""
        return dataclasses.replace(self, data=np.atleast_1d(self.data[index]))
