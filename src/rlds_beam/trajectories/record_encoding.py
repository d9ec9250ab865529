"""Trajectory items as framed tf.Examples, encoded by column.

All items of one length are the same bytes with other values in the same places: a template with
holes. The records of K items are a uint8 matrix [K, record], every row the template, and each leaf
is one strided copy from the frames: an item of consecutive frames is consecutive memory in the
frame's column, so that an overlapping window costs one `memcpy` however many frames it has.
The matrix is filled and framed in blocks that stay in the processor's cache.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rlds_beam.episodes.images import EncodedImages
from rlds_beam.episodes.violations import BadEpisode, Violation
from rlds_beam.formats.tfrecord_writing import FramedRows, frame
from rlds_beam.formats.wire import delimited, fixed_varints, tag_and_length, text, varint_width
from rlds_beam.trajectories.frames import padded
from rlds_beam.trajectories.image_leaves import jpegs_of, pixels_of, zero_jpeg
from rlds_beam.trajectories.keeping import Kept, kept_entries
from rlds_beam.trajectories.options import Images
from rlds_beam.trajectories.record_layout import is_jpeg, record_fields

if TYPE_CHECKING:
    from rlds_beam.episodes.episode import Column
    from rlds_beam.trajectories.items import Items, Windows
    from rlds_beam.trajectories.spec import Leaf, TrajectorySpec

Array = np.ndarray[Any, Any]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]

_BLOCK_BYTES = 1 << 18
"""Bytes of records filled and framed at a time: what fits the second-level cache."""

_RECORD_LIMIT = 1 << 31
"""No protobuf message may be as long."""

_BYTES_LIST = 1
_LISTS = {"float32": 2, "int64": 3}
"""The field of tf.train.Feature by dtype; all others stand in _BYTES_LIST."""


@dataclasses.dataclass(frozen=True)
class Encoded:
    """Framed records.

    Attributes:
      buffers: one after another they are the content of the file. To be taken once, and each is
        written or copied before the next is taken: they share one room.
      count: number of records.
    """

    buffers: Iterable[memoryview | bytes]
    count: int


class TrajectoryEncoder:
    """Encodes the items of a dataset.

    Args:
      spec: the leaves of the trajectories.
      keep: what the records carry beside the trajectory.
      images: `raw` writes images as pixels; `jpeg` writes every uint8 leaf of rank 3 as JPEG, as
        TF-Agents' `compress_image=True` reads it (`record_layout`).
      jpeg_quality: of the images that are not JPEGs already (TF-Agents writes 95).

    Attributes:
      fields: what a record holds, for features.json and the `.spec` (`record_fields`).

    Raises:
      UsageError: the format cannot hold a leaf; says which, and the cast to ask for.
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
        self._room: _Room | None = None

    def encode(self, items: Items) -> Encoded:
        """The records of the items, in their order.

        Raises:
          BadEpisode: an image cannot be decoded, or an item takes 2 GiB or more, which no tf.Example can.
          ValueError: a column is not of the spec's dtype and shape.
        """
        windows, count, padding = items.windows, items.windows.count, items.windows.padding
        if not count:
            return Encoded([], 0)
        sources = [_source(leaf, items.frames[leaf.path], padding) for leaf in self._leaves]
        frames = len(items.frames) + padding
        holes = tuple(
            (leaf.path, _LISTS.get(leaf.dtype, _BYTES_LIST), source.nbytes // frames * windows.length)
            for leaf, source in zip(self._leaves, sources, strict=True)
        )
        whole = not (self._jpegs or self._keep)
        template = _template(holes, whole)
        blocks = self._blocks(windows, template, sources)
        if whole:
            return Encoded((room.finish(rows).reshape(-1).data for room, rows in blocks), count)
        entries = (row.tobytes() for room, rows in blocks for row in room.payload[:rows])
        parts = zip(entries, self._jpeg_entries(items), self._kept_entries(items), strict=True)
        return Encoded([_frame(b"".join(entries)) for entries in parts], count)

    def _blocks(self, windows: Windows, template: _Template, sources: list[Bytes]) -> Iterator[tuple[FramedRows, int]]:
        """The payloads of all items, a block after the other in one room, and how many rows of it are filled."""
        if self._room is None or self._room.template is not template:
            self._room = _Room.of(template)
        _, records, holes = self._room
        step = len(records.payload)
        copies = [(hole, _values(windows, source, hole.dtype)) for hole, source in zip(holes, sources, strict=True)]
        for first in range(0, windows.count, step):
            rows = min(step, windows.count - first)
            for hole, values in copies:
                hole[:rows] = values[first : first + rows]
            yield records, rows

    def _jpeg_entries(self, items: Items) -> Iterator[bytes]:
        """The entries of the JPEG leaves of each item."""
        columns = []
        for leaf in self._jpegs:
            jpegs = jpegs_of(items.frames[leaf.path], leaf, self._quality)
            columns.append((leaf.path, [*jpegs, zero_jpeg(leaf.shape, self._quality)]))  # PAD is the last
        for row in items.index.tolist():
            entries = []
            for path, jpegs in columns:
                if self._jpeg_by_frame:
                    entries += [_bytes_entry(f"{path}/{i}", [jpegs[frame]]) for i, frame in enumerate(row)]
                else:
                    entries.append(_bytes_entry(path, [jpegs[frame] for frame in row]))
            yield b"".join(entries)

    def _kept_entries(self, items: Items) -> Iterator[bytes]:
        """The entries of what each item carries beside its trajectory."""
        for index in items.index:
            yield kept_entries(self._keep, items.frames.kept, index) if self._keep else b""


def _values(windows: Windows, source: Bytes, kind: np.dtype[Any]) -> Array:
    """What a leaf's hole takes of each item, [items] of `kind` (bytes): a view, in which windows may overlap."""
    width = kind.itemsize // windows.length
    return np.ndarray((windows.count,), kind, source, windows.start * width, (windows.stride * width,))


def _source(leaf: Leaf, column: Column, padding: int) -> Bytes:
    """The bytes of a leaf as they are in a record: [frames + padding, ...], C-contiguous."""
    values = pixels_of(column, leaf) if isinstance(column, EncodedImages) else column
    if values.dtype != leaf.numpy_dtype or values.shape[1:] != leaf.shape:
        raise ValueError(
            f"{leaf.path} is {values.dtype.name}{list(values.shape[1:])}, where the dataset's trajectories have "
            f"{leaf.dtype}{list(leaf.shape)}"
        )
    values = padded(leaf.path, values, padding)
    if leaf.dtype == "int64":
        # All as wide as the widest, so that the records of an episode are of one size whatever their values are.
        numbers = values.astype("<i8", copy=False).view(np.uint64)
        return fixed_varints(numbers, varint_width(int(numbers.max()))).reshape(len(values), -1)
    return np.ascontiguousarray(values).view(np.uint8)


class _Template(NamedTuple):
    """A row with the holes empty, and the offset and the bytes of each hole."""

    row: Bytes
    places: tuple[tuple[int, int], ...]


class _Room(NamedTuple):
    """Room for a block of records of one template, and views of each hole in it: [rows] of `void`, a hole each."""

    template: _Template
    records: FramedRows
    holes: tuple[Array, ...]

    @classmethod
    def of(cls, template: _Template) -> _Room:
        records = FramedRows(max(1, _BLOCK_BYTES // len(template.row)), len(template.row))
        records.payload[:] = template.row  # does not change when the holes are filled
        holes = (records.payload[:, start : start + size].view((np.void, size)) for start, size in template.places)
        return cls(template, records, tuple(hole[:, 0] for hole in holes))


Holes = tuple[tuple[str, int, int], ...]
"""Path, field of Feature and bytes of each hole."""


def _template(holes: Holes, whole: bool) -> _Template:
    """The template of Examples with these holes; not `whole`: of their entries only."""
    # Episodes are of many lengths; the templates of short items are kept, those of whole episodes of images are not.
    small = sum(size for _, _, size in holes) <= _BLOCK_BYTES
    return _kept_template(holes, whole) if small else _new_template(holes, whole)


@functools.lru_cache(maxsize=256)
def _kept_template(holes: Holes, whole: bool) -> _Template:
    return _new_template(holes, whole)


def _new_template(holes: Holes, whole: bool) -> _Template:
    heads = [_entry_head(*hole) for hole in holes]
    size = sum(map(len, heads)) + sum(hole for _, _, hole in holes)
    row = bytearray(tag_and_length(1, size) if whole else b"")
    _check_size(len(row) + size)
    places = []
    for head, (_, _, hole) in zip(heads, holes, strict=True):
        row += head
        places.append((len(row), hole))
        row += bytes(hole)
    return _Template(np.frombuffer(bytes(row), np.uint8), tuple(places))


def _entry_head(path: str, kind: int, size: int) -> bytes:
    """The bytes before the `size` bytes of values in an entry of Features.feature (a map)."""
    values = tag_and_length(1, size)
    feature = tag_and_length(kind, len(values) + size) + values
    value = tag_and_length(2, len(feature) + size) + feature
    key = text(1, path)
    return tag_and_length(1, len(key) + len(value) + size) + key + value


def _bytes_entry(path: str, values: Sequence[bytes]) -> bytes:
    feature = delimited(_BYTES_LIST, b"".join(delimited(1, value) for value in values))
    return delimited(1, text(1, path) + delimited(2, feature))


def _frame(entries: bytes) -> bytes:
    """The TFRecord of an Example with these entries."""
    payload = delimited(1, entries)
    _check_size(len(payload))
    return frame(payload)


def _check_size(size: int) -> None:
    if size >= _RECORD_LIMIT:
        detail = f"an item takes {size} bytes, and a tf.Example holds less than 2 GiB: make shorter items"
        raise BadEpisode(Violation("too_long", detail))
