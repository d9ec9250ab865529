"""Encodes trajectory items by column, as framed tf.Examples.

All items of equal length have the same layout with different values: a template with holes. The records of K items are
a uint8 matrix [K, record] whose rows are copies of the template. Each leaf is filled in with one strided copy: an item
of consecutive frames is consecutive memory in a column, so an overlapping window costs one `memcpy`. The matrix is
filled and framed in blocks that fit in the CPU cache.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds_beam.encoding.example.rows import (
    BYTES_LIST,
    RECORD_LIMIT,
    Bytes,
    Holes,
    RecordBlock,
    Template,
    bytes_entry,
    check_example,
    entries_size,
    entry_head,
    join_examples,
    make_template,
)
from rlds_beam.encoding.tfrecord.framing import FramedRows, framed_blocks
from rlds_beam.encoding.wire import fixed_varints, varint_width
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.trajectories.frames import LISTS, Kept, kept_entries, pad_column
from rlds_beam.trajectories.options import Images
from rlds_beam.trajectories.record_layout import encode_jpegs, is_jpeg, record_fields, zero_jpeg
from rlds_beam.typing import Array

if TYPE_CHECKING:
    from rlds_beam.episodes.episode import Column
    from rlds_beam.trajectories.items import Items, Windows
    from rlds_beam.trajectories.spec import SpecLeaf, TrajectorySpec


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


@dataclasses.dataclass(frozen=True)
class PreparedItems:
    """Items of an episode that can certainly be encoded.

    Attributes:
      windows: the frames of each item.
      holes: the holes of a record's template, for the leaves of fixed size.
      sources: the bytes of these leaves as stored, for all frames and padding frames, uint8 [frames, ...].
      jpegs: the JPEG of each frame, and at last of a padding frame, by leaf.
      kept: the entries of the kept fields of each item; empty if no fields are kept.
    """

    windows: Windows
    holes: Holes
    sources: Sequence[Bytes]
    jpegs: Sequence[Sequence[bytes | memoryview]]
    kept: Sequence[bytes]

    @functools.cached_property
    def size(self) -> int:
        """An upper bound of the bytes of the records, without names and lengths."""
        largest = sum(max(map(len, jpegs)) for jpegs in self.jpegs) * self.windows.length
        fixed = sum(size for _, _, size in self.holes)
        return self.windows.count * (fixed + largest) + sum(map(len, self.kept))


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
        self._room: RecordBlock | None = None

    def encode(self, items: Items) -> Encoded:
        """Encodes the items as records, in order; see `prepare` for errors."""
        return self.encode_all([self.prepare(items)])

    def prepare(self, items: Items) -> PreparedItems:
        """Does everything that can fail.

        Raises:
          BadEpisode: an image cannot be decoded, or an item is 2 GiB or more, the limit of tf.Example.
          ValueError: a column does not have the spec's dtype and shape.
        """
        windows, padding = items.windows, items.windows.padding
        if not windows.count:
            return PreparedItems(windows, (), (), (), ())
        sources = [_source(leaf, items.frames[leaf.path], padding) for leaf in self._leaves]
        frames = len(items.frames) + padding
        holes = tuple(
            (leaf.path, LISTS.get(leaf.dtype, BYTES_LIST), source.nbytes // frames * windows.length)
            for leaf, source in zip(self._leaves, sources, strict=True)
        )
        jpegs = [
            (*encode_jpegs(items.frames[leaf.path], leaf, self._quality), zero_jpeg(leaf.shape, self._quality))
            for leaf in self._jpegs
        ]
        kept = [kept_entries(self._keep, items.frames.kept, index) for index in items.index] if self._keep else ()
        prepared = PreparedItems(windows, holes, sources, jpegs, kept)
        if prepared.size >= RECORD_LIMIT // 2:
            self._check_sizes(prepared)
        return prepared

    def encode_all(self, prepared: Sequence[PreparedItems]) -> Encoded:
        """Encodes the items of several episodes; those of short episodes are much cheaper together."""
        prepared = [episode for episode in prepared if episode.windows.count]
        groups = [[*group] for _, group in itertools.groupby(prepared, lambda item: (item.holes, item.windows.length))]
        buffers = itertools.chain.from_iterable(map(self._encode, groups))
        return Encoded(buffers, sum(episode.windows.count for episode in prepared))

    def _encode(self, group: Sequence[PreparedItems]) -> Iterable[memoryview | bytes]:
        """Encodes items of the same template."""
        whole = not (self._jpegs or self._keep)
        blocks = self._blocks(group, make_template(group[0].holes, whole))
        if whole:
            return (room.finish(rows).reshape(-1).data for room, rows in blocks)
        fixed = list[bytes]()
        for room, rows in blocks:
            fixed += room.payload[:rows].view((np.void, room.payload.shape[1]))[:, 0].tolist()
        return framed_blocks(join_examples([fixed, *self._jpeg_entries(group), *_keep(group)]))

    def _check_sizes(self, prepared: PreparedItems) -> None:
        """Raises BadEpisode if an item is 2 GiB or more."""
        pieces = [*self._jpeg_entries([prepared]), *_keep([prepared])]
        check_example(
            entries_size(prepared.holes)
            + max(map(sum, zip(*(map(len, part) for part in pieces), strict=True)), default=0)
        )

    def _blocks(self, group: Sequence[PreparedItems], template: Template) -> Iterator[tuple[FramedRows, int]]:
        """Yields the payloads of all items in blocks that reuse one buffer, with the number of rows filled."""
        if self._room is None or self._room.template is not template:
            self._room = RecordBlock.from_template(template)
        _, records, holes = self._room
        step, starts = len(records.payload), _starts(group)
        length = group[0].windows.length
        sources = zip(*(episode.sources for episode in group), strict=True)
        copies = [(hole, _values(source, hole.dtype, length)) for hole, source in zip(holes, sources, strict=True)]
        for first in range(0, len(starts), step):
            some: Any = starts[first : first + step]
            which = slice(some.start, some.stop, some.step) if isinstance(some, range) else some
            for hole, values in copies:
                hole[: len(some)] = values[which]
            yield records, len(some)

    def _jpeg_entries(self, group: Sequence[PreparedItems]) -> Iterator[Sequence[bytes | memoryview]]:
        """Yields the entries of the JPEG leaves in parts: each part holds one piece for every item."""
        if not self._jpegs:
            return
        length = group[0].windows.length
        frames = [episode.windows.index().T.tolist() for episode in group]  # PAD is the last index
        for place, leaf in enumerate(self._jpegs):
            jpegs = [episode.jpegs[place] for episode in group]
            parts = [[map(own.__getitem__, row) for row in rows] for own, rows in zip(jpegs, frames, strict=True)]
            chosen = [[*itertools.chain.from_iterable(part)] for part in zip(*parts, strict=True)]
            names = [f"{leaf.path}/{i}" for i in range(length)] if self._jpeg_by_frame else [leaf.path]
            if len(names) != length:
                yield [bytes_entry(leaf.path, row) for row in zip(*chosen, strict=True)]
                continue
            for name, column in zip(names, chosen, strict=True):
                yield [entry_head(name, BYTES_LIST, size) for size in map(len, column)]
                yield column


def _keep(group: Sequence[PreparedItems]) -> Iterator[Sequence[bytes]]:
    """Yields the entries of the kept fields of each item."""
    if group[0].kept:
        yield [entry for episode in group for entry in episode.kept]


def _starts(group: Sequence[PreparedItems]) -> range | Array:
    """The first frame of each item, in the frames of all episodes laid end to end."""
    windows = [episode.windows for episode in group]
    frames = [0, *itertools.accumulate(window.frames + window.padding for window in windows)]
    starts = [
        range(at + window.start, at + window.start + window.count * window.stride, window.stride)
        for at, window in zip(frames, windows, strict=False)
    ]
    return (
        starts[0]
        if len(group) == 1
        else np.concatenate([np.arange(start.start, start.stop, start.step) for start in starts])
    )


def _values(sources: Sequence[Bytes], kind: np.dtype[Any], length: int) -> Array:
    """The bytes of a leaf in each window of `length` frames, [windows] of `kind`: an overlapping view."""
    source = sources[0] if len(sources) == 1 else np.concatenate([source.reshape(-1) for source in sources])
    width = kind.itemsize // length
    return np.ndarray((source.nbytes // width - length + 1,), kind, source, 0, (width,))


def _source(leaf: SpecLeaf, column: Column, padding: int) -> Bytes:
    """The bytes of a leaf as stored in a record: [frames + padding, ...], C-contiguous."""
    values = column.decode_all(leaf.path, leaf.shape) if isinstance(column, EncodedImages) else column
    if values.dtype != leaf.numpy_dtype or values.shape[1:] != leaf.shape:
        raise ValueError(
            f"{leaf.path} is {values.dtype.name}{list(values.shape[1:])}, but the dataset's trajectories have "
            f"{leaf.dtype}{list(leaf.shape)}"
        )
    values = pad_column(leaf.path, values, padding)
    if leaf.dtype == "int64":
        # All as wide as the widest, so that all records of an episode have the same size.
        numbers = values.astype("<i8", copy=False).view(np.uint64)
        return fixed_varints(numbers, varint_width(int(numbers.max()))).reshape(len(values), -1)
    return np.ascontiguousarray(values).view(np.uint8)
