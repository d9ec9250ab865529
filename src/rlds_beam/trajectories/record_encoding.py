"""Encodes trajectory items by column, as framed tf.Examples.

All items of equal length have the same layout with different values: a template with holes. The records of K items are
a uint8 matrix [K, record] whose rows are copies of the template. Each leaf is filled in with one strided copy: an item
of consecutive frames is consecutive memory in a column, so an overlapping window costs one `memcpy`. The matrix is
filled and framed in blocks that fit in the CPU cache.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds_beam.encoding.example.templates import (
    BYTES_LIST,
    FLOAT_LIST,
    INT64_LIST,
    Array,
    Bytes,
    Room,
    Template,
    bytes_entry,
    entry_heads,
    examples_of,
    template_of,
)
from rlds_beam.encoding.tfrecord.writing import FramedRows, framed_blocks
from rlds_beam.encoding.wire import fixed_varints, varint_width
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.trajectories.frames import padded
from rlds_beam.trajectories.image_leaves import jpegs_of, pixels_of, zero_jpeg
from rlds_beam.trajectories.keeping import Kept, kept_entries
from rlds_beam.trajectories.options import Images
from rlds_beam.trajectories.record_layout import is_jpeg, record_fields

if TYPE_CHECKING:
    from rlds_beam.episodes.episode import Column
    from rlds_beam.trajectories.items import Items, Windows
    from rlds_beam.trajectories.spec import SpecLeaf, TrajectorySpec

_LISTS = {"float32": FLOAT_LIST, "int64": INT64_LIST}
"""dtype -> field of tf.train.Feature; other dtypes are stored as bytes."""


@dataclasses.dataclass(frozen=True)
class Encoded:
    """Framed records.

    Attributes:
      buffers: the content of the file, in order. Iterate only once, and write or copy each buffer before taking the
        next: they share memory.
      count: the number of records.
    """

    buffers: Iterable[memoryview | bytes]
    count: int


class TrajectoryEncoder:
    """Encodes the items of a dataset.

    Args:
      spec: the leaves of the trajectories.
      keep: the fields that records carry besides the trajectory.
      images: `raw` writes images as pixels; `jpeg` writes every uint8 leaf of rank 3 as JPEG, as
        TF-Agents' `compress_image=True` reads it (`record_layout`).
      jpeg_quality: the quality of images that are not JPEGs already (TF-Agents uses 95).

    Attributes:
      fields: the fields of a record, for features.json and the `.spec` (`record_fields`).

    Raises:
      UsageError: the format cannot hold a leaf; the message suggests a cast.
    """

    def __init__(
        self, spec: TrajectorySpec, images: Images = "raw", *, keep: Sequence[Kept] = (), jpeg_quality: int = 95
    ):
        self.fields = record_fields(spec, images)
        self._leaves = tuple(leaf for leaf in spec.leaves if not is_jpeg(leaf, images))
        self._jpegs = tuple(leaf for leaf in spec.leaves if is_jpeg(leaf, images))
        self._keep = tuple(keep)
        self._jpeg_by_frame = spec.item_shape not in ((), (None,))
        self._quality = jpeg_quality
        self._room: Room | None = None

    def encode(self, items: Items) -> Encoded:
        """Encodes the items as records, in order.

        Raises:
          BadEpisode: an image cannot be decoded, or an item is 2 GiB or more, the limit of tf.Example.
          ValueError: a column does not have the spec's dtype and shape.
        """
        windows, count, padding = items.windows, items.windows.count, items.windows.padding
        if not count:
            return Encoded([], 0)
        sources = [_source(leaf, items.frames[leaf.path], padding) for leaf in self._leaves]
        frames = len(items.frames) + padding
        holes = tuple(
            (leaf.path, _LISTS.get(leaf.dtype, BYTES_LIST), source.nbytes // frames * windows.length)
            for leaf, source in zip(self._leaves, sources, strict=True)
        )
        whole = not (self._jpegs or self._keep)
        template = template_of(holes, whole)
        blocks = self._blocks(windows, template, sources)
        if whole:
            return Encoded((room.finish(rows).reshape(-1).data for room, rows in blocks), count)
        fixed = [row.tobytes() for room, rows in blocks for row in room.payload[:rows]]
        payloads = examples_of([fixed, *self._jpeg_entries(items), *self._kept_entries(items)])
        return Encoded(framed_blocks(payloads), count)

    def _blocks(self, windows: Windows, template: Template, sources: list[Bytes]) -> Iterator[tuple[FramedRows, int]]:
        """Yields the payloads of all items in blocks that reuse one buffer, with the number of rows filled."""
        if self._room is None or self._room.template is not template:
            self._room = Room.of(template)
        _, records, holes = self._room
        step = len(records.payload)
        copies = [(hole, _values(windows, source, hole.dtype)) for hole, source in zip(holes, sources, strict=True)]
        for first in range(0, windows.count, step):
            rows = min(step, windows.count - first)
            for hole, values in copies:
                hole[:rows] = values[first : first + rows]
            yield records, rows

    def _jpeg_entries(self, items: Items) -> Iterator[Sequence[bytes | memoryview]]:
        """Yields the entries of the JPEG leaves in parts: each part holds one piece for every item."""
        index = items.index
        for leaf in self._jpegs:
            jpegs = jpegs_of(items.frames[leaf.path], leaf, self._quality)
            jpegs = [*jpegs, zero_jpeg(leaf.shape, self._quality)]  # PAD is the last index
            names = [f"{leaf.path}/{i}" for i in range(index.shape[1])] if self._jpeg_by_frame else [leaf.path]
            if len(names) != index.shape[1]:
                yield [bytes_entry(leaf.path, [jpegs[frame] for frame in row]) for row in index.tolist()]
                continue
            for name, frames in zip(names, index.T.tolist(), strict=True):
                chosen = [jpegs[frame] for frame in frames]
                heads = entry_heads(name, BYTES_LIST)
                yield [heads[len(jpeg)] for jpeg in chosen]
                yield chosen

    def _kept_entries(self, items: Items) -> Iterator[Sequence[bytes]]:
        """Yields the entries of the kept fields of each item."""
        if self._keep:
            yield [kept_entries(self._keep, items.frames.kept, index) for index in items.index]


def _values(windows: Windows, source: Bytes, kind: np.dtype[Any]) -> Array:
    """The bytes of a leaf for each item, [items] of `kind`: a view in which windows may overlap."""
    width = kind.itemsize // windows.length
    return np.ndarray((windows.count,), kind, source, windows.start * width, (windows.stride * width,))


def _source(leaf: SpecLeaf, column: Column, padding: int) -> Bytes:
    """The bytes of a leaf as stored in a record: [frames + padding, ...], C-contiguous."""
    values = pixels_of(column, leaf) if isinstance(column, EncodedImages) else column
    if values.dtype != leaf.numpy_dtype or values.shape[1:] != leaf.shape:
        raise ValueError(
            f"{leaf.path} is {values.dtype.name}{list(values.shape[1:])}, but the dataset's trajectories have "
            f"{leaf.dtype}{list(leaf.shape)}"
        )
    values = padded(leaf.path, values, padding)
    if leaf.dtype == "int64":
        # All as wide as the widest, so that all records of an episode have the same size.
        numbers = values.astype("<i8", copy=False).view(np.uint64)
        return fixed_varints(numbers, varint_width(int(numbers.max()))).reshape(len(values), -1)
    return np.ascontiguousarray(values).view(np.uint8)
