"""Read the items of a converted dataset back, to push them without another conversion."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from rlds_beam import storage
from rlds_beam.encoding.example.row_decoder import RowDecoder, objects
from rlds_beam.encoding.tfrecord.framing import Bytes, RecordRows
from rlds_beam.encoding.wire import MalformedError
from rlds_beam.episodes.episode import Column, EpisodeKey
from rlds_beam.episodes.schema import Field
from rlds_beam.errors import BadEpisode, RldsBeamError, UsageError
from rlds_beam.formats.trajectories.output import read_fields
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.output.commits import read_manifest
from rlds_beam.output.files import Checksum
from rlds_beam.output.plans import read_plan
from rlds_beam.trajectories.frames import Frames
from rlds_beam.trajectories.items import Items, Windows
from rlds_beam.trajectories.spec import Shape, SpecLeaf, TrajectorySpec
from rlds_beam.typing import Array

_BATCH_ITEMS, _BATCH_BYTES = 256, 4 << 20
"""Maximum items to read at a time, fewer if they are large. Changing these changes the address of every item."""


@dataclasses.dataclass(frozen=True)
class ConvertedRange:
    """A shard of the dataset, read by one worker.

    Attributes:
      path: the path of the file.
      split, index: the shard's split, and its number in the split.
      items, bytes, checksum: the file's facts in the manifest.
    """

    path: str
    split: str
    index: int
    items: int
    bytes: int
    checksum: str

    def __str__(self) -> str:
        return f"{self.split}-{self.index:05d}"


@dataclasses.dataclass(frozen=True)
class ConvertedDataset:
    """A converted dataset, opened for reading. Pickles.

    Attributes:
      dataset: `name/version`.
      fingerprint: hex digest of what all records are. It tells two conversions of a dataset apart, which have
        the same names and positions.
      spec: the leaves, in the order in which `tf.nest` flattens a `Trajectory`. Images are pixels.
      ranges: one for each shard with items.
      jpegs: the record keys of each leaf that is stored as JPEGs.
      fields: the fields of a record.
    """

    dataset: str
    fingerprint: str
    spec: TrajectorySpec
    ranges: tuple[ConvertedRange, ...]
    jpegs: dict[str, tuple[str, ...]]
    fields: tuple[Field, ...]

    @property
    def items(self) -> int:
        """The number of items in all ranges."""
        return sum(work.items for work in self.ranges)

    @functools.cached_property
    def batch(self) -> int:
        """The number of items in one `Items`. Depends only on the spec, so it is the same in every run."""
        if self.spec.item_shape == (None,):
            return 1
        frame = sum(leaf.numpy_dtype.itemsize * math.prod(leaf.shape) for leaf in self.spec.leaves)
        item = frame * math.prod(length or 1 for length in self.spec.item_shape)
        return max(1, min(_BATCH_ITEMS, _BATCH_BYTES // item))

    def read_items(self, work: ConvertedRange) -> Iterator[Items]:
        """The items of a range in order, bit for bit as written (JPEGs are decoded).

        Each `Items` holds `batch` items (the last one of a range may hold fewer), side by side: frames
        [B * L, ...], and windows of L frames, L apart. Frames that several items share are stored and read
        with each of them. Its key is the shard and the byte offset of its first record.

        Raises:
          RldsBeamError: the file is not what was written. Every record is checked before it is returned,
            and the whole file (checksum, number of items) at its end.
        """
        checksum, decoder = Checksum(), RowDecoder(self.fields)
        try:
            with storage.open_read(work.path) as file:
                reader = RecordRows(file, work.path, checksum)
                position = 0
                while rows := _read_records(reader, self.batch):
                    key = EpisodeKey(self.dataset, work.split, work.index, position)
                    yield self._items(rows, decoder, key, work)
                    position = reader.position
        except OSError as error:
            raise RldsBeamError(f"{work.path} cannot be read: {error}") from error
        if (reader.records, str(checksum)) != (work.items, work.checksum):
            raise RldsBeamError(
                f"{work.path} is not the file that was written: it has {reader.records} items, the manifest "
                f"{work.items}, or its checksum differs; fetch it again, or convert the dataset again"
            )

    def _items(self, rows: list[Bytes], decoder: RowDecoder, key: EpisodeKey, work: ConvertedRange) -> Items:
        try:
            parts = [decoder.decode_rows(block, decoder.fields) for block in rows]
            columns = {leaf.path: self._column(leaf, parts) for leaf in self.spec.leaves}
            frames = Frames(columns, key)
            if len({*map(len, columns.values())}) > 1:
                raise MalformedError("its leaves have different numbers of frames")
        except (MalformedError, BadEpisode) as error:
            raise RldsBeamError(
                f"{work.path}, in the {sum(map(len, rows))} records from byte {key.position}: {error}; the manifest "
                "describes other records: convert the dataset again"
            ) from error
        count = sum(map(len, rows))
        length = len(frames) // count
        return Items(frames, Windows(0, count, length, length, len(frames)))

    def _column(self, leaf: SpecLeaf, parts: list[dict[str, Column]]) -> Column:
        """The frames of a leaf in records that were decoded in parts, [frames of all records, ...]; JPEGs as pixels."""
        if (names := self.jpegs.get(leaf.path)) is None:
            columns: list[Any] = [part[leaf.path] for part in parts]
            if self.spec.item_shape == (None,):  # whole episodes, each of its own length
                columns = [episode for column in columns for episode in column]
            arrays: list[Array] = [column.reshape(-1, *leaf.shape) for column in columns]
            return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
        jpegs: list[bytes] = []
        for part in parts:
            for record in zip(*(part[name] for name in names), strict=True):
                jpegs += record[0] if self.spec.item_shape == (None,) else record
        return _pixels(EncodedImages(objects(jpegs), leaf.shape, leaf.dtype), leaf.path)


def is_converted(path: str) -> bool:
    """Whether `path` is an output of `rlds-beam convert` with items, finished or not."""
    return (plan := read_plan(path)) is not None and plan.content.get("to") != "rlds"


def open_converted(path: str, split: str | None = None) -> ConvertedDataset:
    """Opens the output directory of a conversion. Checks that its shards exist, but does not read them.

    Args:
      path: the directory.
      split: `train` or `train+test`; None for all.

    Raises:
      UsageError: the conversion is unfinished, or this is not an output of rlds-beam; the split is unknown or
        empty; a shard is missing or has another size than written, or its checksum uses an algorithm that
        this version does not know.
    """
    manifest = read_manifest(path)
    fields = read_fields(manifest, path)
    spec, jpegs = make_spec(fields)
    shards = manifest["shards"]
    checksums = [(shard["split"], shard["checksum"]) for shard in shards]
    fingerprint = hashlib.sha256(json.dumps([manifest["fields"], checksums]).encode()).hexdigest()
    return ConvertedDataset(
        dataset=f"{manifest['name']}/{manifest['version']}",
        fingerprint=fingerprint,
        spec=spec,
        ranges=_ranges(path, shards, split),
        jpegs=jpegs,
        fields=tuple(fields),
    )


def _ranges(path: str, shards: list[dict[str, Any]], split: str | None) -> tuple[ConvertedRange, ...]:
    splits = sorted({shard["split"] for shard in shards if shard["records"]})
    if not splits:
        raise UsageError(f"{path} holds no items; see its report.json for the reasons")
    wanted = splits if split is None else split.split("+")
    for name in wanted:
        if name not in splits:
            slices = "; converted items have no episodes to slice: slice when converting" if "[" in name else ""
            raise UsageError(f"{path} has no items in a split {name}; it has {', '.join(splits)}{slices}")
    ranges = []
    for name in wanted:
        own = [shard for shard in shards if shard["split"] == name]
        for i, s in enumerate(own):
            if s["records"]:
                file = storage.join(path, s["file"])
                ranges.append(ConvertedRange(file, name, i, s["records"], s["bytes"], s["checksum"]))
    for work in ranges:
        _check_file(work)
    return tuple(ranges)


def _check_file(work: ConvertedRange) -> None:
    again = "fetch it again, or convert the dataset again"
    if not storage.exists(work.path):
        raise UsageError(f"{work.path} is missing, but the manifest lists it: {again}")
    size = storage.size(work.path)
    if size != work.bytes:
        raise UsageError(f"{work.path} has {size} bytes, expected {work.bytes}: {again}")


def make_spec(fields: list[Field]) -> tuple[TrajectorySpec, dict[str, tuple[str, ...]]]:
    """The spec with these `record_fields`, and the record keys of its JPEGs."""
    item_shape: Shape = next(field.shape for field in fields if field.path == "step_type")
    leaves: dict[str, SpecLeaf] = {}
    jpegs: dict[str, tuple[str, ...]] = {}
    for field in fields:
        path, shape = field.path, field.shape[len(item_shape) :]
        if field.encoding == "jpeg":
            if item_shape not in ((), (None,)):  # a leaf for each frame: `observation/camera/0`, `/1`, ...
                path, shape = path.rpartition("/")[0], field.shape
            jpegs[path] = (*jpegs.get(path, ()), field.path)
        leaves[path] = SpecLeaf(path, field.dtype, tuple(size or 0 for size in shape))
    return TrajectorySpec(tuple(leaves.values()), item_shape), jpegs


def _read_records(reader: RecordRows, count: int) -> list[Bytes]:
    """The next `count` records, or fewer at the end of the file."""
    blocks: list[Bytes] = []
    while count and (rows := reader.read(count)) is not None:
        blocks.append(rows)
        count -= len(rows)
    return blocks


def _pixels(column: EncodedImages, path: str) -> Column:
    """The pixels of JPEGs; one that several items share is decoded once."""
    number = {jpeg: i for i, jpeg in enumerate(dict.fromkeys(column))}
    pixels = column.with_data(objects(list(number))).decode(path)
    return pixels[[number[jpeg] for jpeg in column]]
