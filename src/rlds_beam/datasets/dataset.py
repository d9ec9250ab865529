"""A dataset with random access, without TensorFlow or torch."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, Unpack, cast, overload

import numpy as np

from rlds_beam.datasets.base import Indices, Rows
from rlds_beam.datasets.batch_plan import plan_batches
from rlds_beam.datasets.batches import Batches, BatchOptions
from rlds_beam.datasets.steps import IndexedSteps
from rlds_beam.encoding.example.row_decoder import objects
from rlds_beam.episodes.episode import Column
from rlds_beam.episodes.schema import Field, fields_text
from rlds_beam.errors import BadEpisode, RldsBeamError
from rlds_beam.images.codecs import Jpeg
from rlds_beam.images.encoded_images import ZERO_IMAGE, EncodedImages
from rlds_beam.images.video_frames import VideoFrames
from rlds_beam.lazy import Viewable
from rlds_beam.text import count, tree
from rlds_beam.typing import Array

Row = dict[str, Any]
Images = Literal["pixels", "encoded"]

_AT_ONCE = 256
"""Rows read at a time when reading all."""


class Dataset(Viewable):
    """The rows of a dataset, as numpy values by column; made by `open_dataset`.

        dataset[7]             one row: {"obs": array of shape (3,), "rewards": 0.5, ...}
        dataset[-1]            the last one
        dataset[100:200]       columns of 100 rows: {"obs": array of shape (100, 3), ...}
        dataset[[3, 1, 3]]     columns of these rows
        dataset.columns["obs"] a column of all rows

    It works as a map-style torch `Dataset` and as a grain source: it has `len`, `[i]`, and `__getitems__`, is
    picklable, and can be read by several processes and threads at once. It holds no rows, and no open file when
    pickled. Text is `bytes`. A column whose shape varies between rows is an object array.

    Attributes:
      rows: the storage of the rows.
      name: the path that was opened.
      fields: dtype and shape of each column of a row; a dimension that varies between rows is None.
      jpeg: how JPEGs are decoded.
      fps: steps per second, after the connectors; None if unknown.
    """

    def __init__(self, rows: Rows, name: str, images: Images = "pixels", jpeg: Jpeg = "fast", fps: float | None = None):
        self.rows, self.name, self._images, self.jpeg, self.fps = rows, name, images, jpeg, fps

    @property
    def fields(self) -> Mapping[str, Field]:
        return self.rows.fields

    @property
    def columns(self) -> Mapping[str, Array]:
        """The columns of all rows by name; each is read completely into memory on access."""
        return _Columns(self)

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        void = int(self.rows.void.sum()) if isinstance(self.rows, IndexedSteps) else 0
        without = f", of which batches leave out {count(void, 'last step')} without an action" if void else ""
        return f"Dataset {self.name}: {count(len(self), 'row')}{without}\n{tree({'row': fields_text(self.fields)})}"

    @overload
    def __getitem__(self, index: int) -> Row: ...

    @overload
    def __getitem__(self, index: slice | Sequence[int] | Array) -> dict[str, Array]: ...

    def __getitem__(self, index: Any) -> dict[str, Any]:
        if isinstance(index, slice):
            return self._read(np.arange(*index.indices(len(self))))
        if isinstance(index, (list, tuple, np.ndarray)) and np.ndim(index):
            return self._read(self._check_indices(np.asarray(index)))
        columns = self._read(self._check_indices(np.array([operator.index(index)])))
        return {path: column[0] for path, column in columns.items()}

    def select(self, index: Sequence[int] | Array, columns: Sequence[str]) -> dict[str, Array]:
        """Selected columns of selected rows; only these are decoded."""
        return self._read(self._check_indices(np.asarray(index)), columns)

    def batches(
        self,
        batch_size: int,
        **options: Unpack[BatchOptions],
    ) -> Batches:
        """Batches of rows, decoded by threads ahead of the learner; the options are those of `BatchOptions`.

            steps = open_dataset("data/toy/1.0.0", unit="steps")
            for batch in steps.batches(32, shuffle=True, history=2, chunk=16, image_size=224):
                batch["observation/image"]    # uint8 [32, 2, 224, 224, 3]
                batch["action"]               # float32 [32, 16, 7]
                batch["action_is_pad"]        # bool [32, 16]: steps after the end of the episode

        Args:
          batch_size: rows of a batch (of this rank).

        Raises:
          UsageError: a column does not exist, rows are not steps but windows are wanted, or a value is not allowed.
        """
        return plan_batches([self], None, batch_size, **options)

    def __getitems__(self, indices: Sequence[int]) -> list[Row]:
        """The rows of a batch, read together; a torch `DataLoader` calls this."""
        return list(_split_columns(self._read(self._check_indices(np.asarray(indices, np.int64)))))

    def __iter__(self) -> Iterator[Row]:
        for first in range(0, len(self), _AT_ONCE):
            yield from _split_columns(self[first : first + _AT_ONCE])

    def _check_indices(self, indices: Array) -> Indices:
        count = len(self)
        if indices.dtype == bool:
            if len(indices) != count:
                raise IndexError(f"the mask has {len(indices)} values for {count} rows")
            return np.flatnonzero(indices)
        if indices.size and indices.dtype.kind not in "iu":
            raise TypeError(f"row indices must be integers, not {indices.dtype}")
        numbers = indices.astype(np.int64)
        if numbers.size and not (-count <= numbers.min() and numbers.max() < count):
            wrong = numbers[(numbers < -count) | (numbers >= count)][0]
            raise IndexError(f"row {wrong} is out of range: {self.name} has {count}")
        return np.where(numbers < 0, numbers + count, numbers)

    def _read(self, indices: Indices, wanted: Sequence[str] | None = None) -> dict[str, Array]:
        paths = list(self.fields) if wanted is None else wanted
        return {path: self._array(path, column) for path, column in self.rows.read(indices, paths).items()}

    def _column(self, path: str) -> Array:
        """All rows of a column, read `_AT_ONCE` at a time."""
        count = len(self)
        blocks = [
            self._read(np.arange(first, min(first + _AT_ONCE, count)), [path])[path]
            for first in range(0, max(count, 1), _AT_ONCE)
        ]
        if len({(block.shape[1:], block.dtype) for block in blocks}) == 1:
            return np.concatenate(blocks)
        return objects([row for block in blocks for row in block])  # images of several sizes

    def _array(self, path: str, column: Column) -> Array:
        if not isinstance(column, EncodedImages):
            return column if column.flags.writeable else column.copy()
        try:
            if self._images == "encoded":
                return objects([row.data if isinstance(row, VideoFrames) else row for row in column.data])
            return _pixels(column, path, self.jpeg)
        except BadEpisode as bad:
            raise RldsBeamError(f"{self.name}: {path}: {bad}") from bad


class _Columns(Mapping[str, Array]):
    def __init__(self, dataset: Dataset):
        self._dataset = dataset

    def __getitem__(self, path: str) -> Array:
        if path not in self._dataset.fields:
            raise KeyError(path)
        return self._dataset._column(path)

    def __iter__(self) -> Iterator[str]:
        return iter(self._dataset.fields)

    def __len__(self) -> int:
        return len(self._dataset.fields)


def _split_columns(columns: Mapping[str, Array]) -> Iterator[Row]:
    count = len(next(iter(columns.values()))) if columns else 0
    for i in range(count):
        yield {path: column[i] for path, column in columns.items()}


def _pixels(images: EncodedImages, path: str, jpeg: Jpeg) -> Array:
    """Decodes to [k, H, W, C], or [k, L, H, W, C] for rows of several images; an object array if shapes differ."""
    if isinstance(images, VideoFrames) and images.is_direct:
        return images.stack()
    decoded = [_decode(row, images, path, jpeg) for row in images.data]
    shapes = {image.shape for image in decoded}
    if len(shapes) == 1:
        return np.stack(decoded)
    return objects(decoded) if decoded else np.empty((0, *(d or 0 for d in images.shape)), images.dtype)


def _decode(row: Any, images: EncodedImages, path: str, jpeg: Jpeg) -> Array:
    """The pixels of one image or of a row's images; zeros for `ZERO_IMAGE`."""
    if isinstance(row, VideoFrames):
        return row.decode(path)
    several = not isinstance(row, bytes)
    data = objects(list(row) if several else [row])
    there = np.array([image != ZERO_IMAGE for image in data], bool)
    real = EncodedImages(data[there], images.shape, images.dtype).decode(path, jpeg)
    pixels = real
    if not there.all():
        pixels = np.zeros((len(data), *real.shape[1:]), images.dtype)
        pixels[there] = real
    return pixels if several else cast(Array, pixels[0])
