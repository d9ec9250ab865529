"""Reads the bytes of images at known places, and nothing else, and compares them with their checksums."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import google_crc32c
import numpy as np

from rlds_beam import storage
from rlds_beam.datasets.base import PerThread
from rlds_beam.datasets.step_index import BLOB
from rlds_beam.errors import RldsBeamError

Array = np.ndarray[Any, Any]

_TOGETHER = 1 << 16
"""The largest gap in bytes between two images of a remote file that is read instead of skipped."""

_OPEN = 64
"""Files that a thread keeps open."""


class PlaceReader:
    """Reads bytes by their `PLACE`. Picklable and thread-safe.

    Args:
      files: the files.
      blob: the path of blob.bin.
    """

    def __init__(self, files: Sequence[str], blob: str = ""):
        self._files, self._blob = files, blob
        self._remote = any(storage.scheme(path) is not None for path in files)
        self._open: PerThread[Any] = PerThread(storage.open_read, _OPEN, _close)

    def read(self, places: Array) -> list[bytes]:
        """Reads the bytes at each place, `PLACE` [k], in any order; b"" for a size of 0.

        Raises:
          RldsBeamError: they do not match their checksum, or the file cannot be read.
        """
        found = [b""] * len(places)
        order = np.lexsort((places["offset"], places["file"])).tolist()
        rows = places.tolist()
        i = 0
        while i < len(order):
            offset, size, _, number, _ = rows[order[i]]
            if not size:
                i += 1
                continue
            stop, group = offset + size, [order[i]]
            for j in order[i + 1 :]:
                next_offset, next_size, _, next_number, _ = rows[j]
                if next_number != number or next_offset > stop + (_TOGETHER if self._remote else 0):
                    break
                stop = max(stop, next_offset + next_size)
                group.append(j)
            path = self._blob if number == BLOB else self._files[number]
            data = self._bytes(path, offset, stop - offset)
            for j in group:
                low, length, crc, *_ = rows[j]
                one = data if len(data) == length else data[low - offset : low - offset + length]
                if google_crc32c.value(one) != crc:
                    raise _damaged(path, low, length)
                found[j] = one
            i += len(group)
        return found

    def _bytes(self, path: str, offset: int, size: int) -> bytes:
        try:
            file = self._open[path]
            if storage.scheme(path) is None:
                return os.pread(file.fileno(), size, offset)
            file.seek(offset)
            data: bytes = file.read(size)
            return data
        except OSError as error:
            raise RldsBeamError(f"cannot read {path}: {error.strerror or error}") from error


def _close(file: Any) -> None:
    file.close()


def _damaged(path: str, offset: int, size: int) -> RldsBeamError:
    return RldsBeamError(
        f"{path}: the {size:,} bytes at {offset:,} do not match their checksum: the file is damaged, or was changed "
        "after the dataset was opened. Fetch it again, and open the dataset again"
    )
