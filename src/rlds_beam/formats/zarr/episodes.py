"""The episodes of a zarr store: where they end, and the arrays of each."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping

import numpy as np

from rlds_beam.encoding.base import Damage
from rlds_beam.errors import BucketError
from rlds_beam.formats.arrays.array_episodes import ArrayFormat, Arrays
from rlds_beam.formats.arrays.hdf5_reading import UNREADABLE
from rlds_beam.formats.arrays.parts import pngs
from rlds_beam.formats.zarr.metadata import ZarrArray, read_array
from rlds_beam.formats.zarr.reading import RowReader
from rlds_beam.formats.zarr.stores import ENDS, ZarrStore, is_zip, open_store, root_of, version_of
from rlds_beam.text import shortened
from rlds_beam.typing import Array

_MOST_ENDS = 1 << 25
"""Maximum number of episodes of a store."""

_MOST_EPISODE = 4 << 30
"""Maximum bytes of an episode: those of a record."""


def array_of(store: ZarrStore, key: str) -> ZarrArray:
    """The metadata of an array. Raises OSError if there is none."""
    array = read_array(store, key)
    if array is None:
        raise OSError(f"there is no {key}")
    return array


def read_ends(store: ZarrStore) -> Array:
    """The end of each episode, int64, ascending.

    Raises:
      OSError: they are not ascending numbers from 0.
    """
    array = array_of(store, ENDS)
    if array.dtype.kind not in "iu" or len(array.shape) != 1:
        raise OSError(f"{ENDS} holds {array.dtype}{list(array.shape)}, expected a whole number for each episode")
    if array.shape[0] > _MOST_ENDS:
        raise OSError(f"{ENDS} claims {array.shape[0]:,} episodes; at most {_MOST_ENDS:,} are supported")
    ends = RowReader(store, array).read(0, array.shape[0])
    if len(ends) and int(ends.max()) >= 1 << 62:
        raise OSError(f"{ENDS} holds {ends.max()}, which cannot be a number of steps")
    ends = ends.astype(np.int64)
    wrong = np.flatnonzero(ends < np.concatenate([[0], ends[:-1]]))
    if len(wrong):
        i = int(wrong[0])
        before = int(ends[i - 1]) if i else 0
        raise OSError(f"{ENDS} is not ascending: episode {i:,} ends at {ends[i]:,}, after {before:,}")
    return ends


@dataclasses.dataclass(frozen=True)
class ZarrFormat(ArrayFormat):
    """Zarr stores with episodes. A store's path is that of `stores.path_of`.

    Attributes:
      steps: the keys of the arrays with a row for each step.
      of_episode: the keys of the arrays with a row for each episode.
      images: those of `steps` that hold an image in each row, which are read as PNGs.
    """

    steps: tuple[str, ...]
    of_episode: tuple[str, ...] = ()
    images: frozenset[str] = frozenset()
    name = "zarr"

    def count(self, path: str) -> int:
        version = version_of(path) if is_zip(path) else None
        return _count(path, self.steps, version) if version else _count.__wrapped__(path, self.steps, None)

    def episodes(self, path: str, start: int, stop: int) -> Iterator[Arrays | Damage]:
        with open_store(root_of(path)) as store:
            ends = read_ends(store)
            readers: dict[str, RowReader | OSError] = {}
            for key in (*self.steps, *self.of_episode):
                try:
                    readers[key] = RowReader(store, array_of(store, key))
                except OSError as error:
                    readers[key] = error
            for i in range(start, stop):
                yield self._episode(i, ends, readers)

    def _episode(self, i: int, ends: Array, readers: Mapping[str, RowReader | OSError]) -> Arrays | Damage:
        last = int(ends[-1]) if len(ends) else 0
        if i >= len(ends):
            return Damage(i, i + 1, f"there are rows after {last:,}, where the last episode ends", b"")
        first, end = int(ends[i - 1]) if i else 0, int(ends[i])
        try:
            arrays = {}
            for key, reader in readers.items():
                if isinstance(reader, OSError):
                    raise reader
                rows = (first, end) if key in self.steps else (i, i + 1)
                if reader.array.row_bytes * (rows[1] - rows[0]) > _MOST_EPISODE:
                    raise OSError(f"its {rows[1] - rows[0]:,} rows of {key} are larger than {_MOST_EPISODE >> 30} GB")
                arrays[key] = pngs(reader.pieces(*rows)) if key in self.images else reader.read(*rows)
        except UNREADABLE as error:
            return Damage(i, i + 1, f"rows {first:,} to {end:,} cannot be read: {shortened(error)}", b"")
        return arrays


@functools.lru_cache(maxsize=64)
def _count(path: str, steps: tuple[str, ...], version: object) -> int:
    del version
    try:
        with open_store(root_of(path)) as store:
            ends = read_ends(store)
            arrays = [read_array(store, key) for key in steps]
    except (BucketError, *UNREADABLE) as error:
        raise error if isinstance(error, (OSError, BucketError)) else OSError(str(error)) from error
    last = int(ends[-1]) if len(ends) else 0
    return len(ends) + any(array is not None and array.shape[0] > last for array in arrays)
