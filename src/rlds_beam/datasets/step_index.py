"""The index of a dataset's steps: small files that are memory-mapped, so that all processes share one copy.

    INDEX/
      starts.bin       the index of each episode's first step, then the number of steps: int64 [E + 1]
      0.values.bin     a column of numbers: [N, *shape]
      1.codes.bin      a column of text: the number of each value in its table, int32 [N, *shape]
      1.ends.bin       the table: where each value ends in 1.text.bin, int64 [U]
      1.text.bin
      2.places.bin     a column of images: where the bytes of each are, `PLACE` [N]
      3.places.bin     a column of arrays of any shape: the same, and
      3.shapes.bin     their shapes, int64 [N, dims]
      packets.bin      the packets of videos (`image_index`)
      blob.bin         the bytes that are in no file of the dataset, for example images that a connector edited
      index.json       what the other files hold, and their sizes; written last

Images stay in the files of the dataset. An episode-level field has one value for each episode instead of each step.
"""

from __future__ import annotations

import dataclasses
import json
import mmap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from rlds_beam import storage
from rlds_beam.episodes.schema import Field
from rlds_beam.errors import UsageError
from rlds_beam.images.video_frames import Depth
from rlds_beam.reading.last_steps import LastSteps
from rlds_beam.typing import Array

Kind = Literal["values", "text", "images", "arrays"]

VERSION = 6
"""Format version; bump when the files change."""

PLACE = np.dtype([("offset", "<i8"), ("size", "<u4"), ("crc", "<u4"), ("file", "<i4"), ("edit", "<u2")])
"""Where the bytes of an image are: the number of the file, the offset in it, their size, and their CRC32C.

`file` is `BLOB` for blob.bin, and `FIRST_VIDEO - v` for the frame `offset` of video v. `size` is 0 for an image of
zeros. `edit` is the number of the image's pending edits (`StepIndex.edits`), 0 for none.
"""

_LARGE = 64 << 20
"""Bytes from which a file of the index is read row by row."""

BLOB = -1  # blob.bin is the last of `StepIndex.files`
FIRST_VIDEO = -2

INDEXED_PACKET = np.dtype([("place", PLACE), ("time", "<i8"), ("key", "?"), ("shown", "?")])
"""A packet of a video, see `images.videos.PACKET`."""

_INDEX = "index.json"
_STARTS, _PACKETS, _BLOB_FILE = "starts.bin", "packets.bin", "blob.bin"
_PARTS: Mapping[Kind, tuple[str, ...]] = {
    "values": ("values",),
    "text": ("codes", "ends", "text"),
    "images": ("places",),
    "arrays": ("places", "shapes"),
}


@dataclasses.dataclass(frozen=True)
class IndexedColumn:
    """A column of the index.

    Attributes:
      number: its number, which its files begin with.
      field: the field.
      per_episode: whether it has one value for each episode instead of each step.
    """

    number: int
    field: Field
    per_episode: bool

    @property
    def kind(self) -> Kind:
        """How the values are stored."""
        if self.field.holds_image_files:
            return "images"
        if self.field.dtype == "string":
            return "text"
        return "arrays" if None in self.field.shape else "values"

    def file(self, part: str) -> str:
        return f"{self.number}.{part}.bin"


class IndexWriter:
    """Writes an index into a local directory, a few episodes at a time.

    Args:
      directory: an empty directory.
      steps, metadata: the fields of a step and of an episode.

    Attributes:
      columns: the columns.
      blob_size: the bytes in blob.bin so far.
      steps, episodes: how many there are so far.
    """

    def __init__(self, directory: str, steps: Sequence[Field], metadata: Sequence[Field]):
        fields = [(field, False) for field in steps] + [(field, True) for field in metadata]
        self.columns = [IndexedColumn(i, field, level) for i, (field, level) in enumerate(fields)]
        self._directory = directory
        names = [_STARTS, _PACKETS, _BLOB_FILE, *(c.file(part) for c in self.columns for part in _PARTS[c.kind])]
        self._files = {name: open(storage.below(directory, name), "wb") for name in names}  # noqa: SIM115
        self._tables: dict[int, dict[bytes, int]] = {c.number: {} for c in self.columns if c.kind == "text"}
        self.blob_size = self.steps = self.episodes = 0
        self._write(_STARTS, np.zeros(1, np.int64))

    def add(self, length: int, values: Sequence[Any]) -> None:
        """Adds an episode.

        Args:
          length: its number of steps.
          values: for each column, an array; a list of text; or `Located`.
        """
        for column, value in zip(self.columns, values, strict=True):
            if column.kind == "values":
                self._write(column.file("values"), value)
            elif column.kind == "text":
                self._write(column.file("codes"), self._codes(column, value))
            else:
                for row, data in value.blobs.items():
                    value.places["offset"][row], value.places["file"][row] = self.add_blob(data), BLOB
                self._write(column.file("places"), value.places)
                if column.kind == "arrays":
                    self._write(column.file("shapes"), value.shapes)
        self.episodes += 1
        self.steps += length
        self._write(_STARTS, np.array([self.steps], np.int64))

    def _codes(self, column: IndexedColumn, values: Sequence[bytes]) -> Array:
        table, codes = self._tables[column.number], []
        for value in values:
            code = table.get(value)
            if code is None:
                code = table[value] = len(table)
                file = self._files[column.file("text")]
                file.write(value)
                self._write(column.file("ends"), np.array([file.tell()], np.int64))
            codes.append(code)
        return np.array(codes, np.int32)

    def add_blob(self, data: bytes) -> int:
        """Adds bytes to blob.bin; returns their offset."""
        offset = self.blob_size
        self._files[_BLOB_FILE].write(data)
        self.blob_size += len(data)
        return offset

    def add_packets(self, packets: Array) -> None:
        """Adds the packets of a video, `INDEXED_PACKET` [N]."""
        self._write(_PACKETS, packets)

    def _write(self, name: str, values: Array) -> None:
        self._files[name].write(values.tobytes())

    def finish(self, **content: Any) -> None:
        """Completes the index.

        Args:
          content: the other entries of index.json.
        """
        self.close()
        columns = [{"path": c.field.path, "per_episode": c.per_episode, **c.field.to_json()} for c in self.columns]
        counts = {"episodes": self.episodes, "steps": self.steps, "sizes": storage.sizes(self._directory)}
        described = json.dumps({**counts, "columns": columns, **content}).encode()
        storage.write_bytes(storage.below(self._directory, _INDEX), described)
        storage.sync(self._directory)

    def close(self) -> None:
        for file in self._files.values():
            file.close()


@dataclasses.dataclass
class Located:
    """The images or arrays of an episode, and where their bytes are.

    Attributes:
      places: `PLACE` [T].
      blobs: the bytes that are in no file of the dataset, by row.
      shapes: the shapes of arrays, int64 [T, dims].
      videos: the files of the videos, if the images are their frames; `places` has the positions in this list as yet.
      scale: how the frames are converted, if they are no colors.
      edits: the record of the images' pending edits, whose number is not in `places` yet.
    """

    places: Array
    blobs: Mapping[int, bytes] = dataclasses.field(default_factory=dict)
    shapes: Array | None = None
    videos: Sequence[str] = ()
    scale: Depth | None = None
    edits: dict[str, Any] | None = None


class IncompleteIndexError(UsageError):
    """A file of an index is missing, or has another size than when it was written."""


class StepIndex:
    """An index on disk, memory-mapped. Picklable: another process maps the same files.

    Attributes:
      directory: its directory.
      content: the content of index.json.
      files: the files of the dataset that hold images, then blob.bin.
      columns: the columns by path.
      starts: the index of each episode's first step, then the number of steps: int64 [E + 1].
      packets: the packets of all videos, `INDEXED_PACKET`.
      edits: for each column of edited images, the records whose columns have each of the pending edits; see `PLACE`.
    """

    def __init__(self, directory: str):
        """Opens an index. Raises IncompleteIndexError if it is not complete."""
        self.directory = directory
        try:
            with storage.open_read(storage.join(directory, _INDEX)) as file:
                self.content: dict[str, Any] = json.load(file)
            sizes = storage.sizes(directory)
        except (OSError, ValueError) as error:
            raise self._incomplete(_INDEX) from error
        for name, size in self.content["sizes"].items():
            if sizes.get(name) != size:
                raise self._incomplete(name)
        self.files: list[str] = [*self.content["files"], storage.join(directory, _BLOB_FILE)]
        self.edits: Mapping[str, Sequence[Mapping[str, Any]]] = self.content["edits"]
        self.columns: dict[str, IndexedColumn] = {}
        for i, entry in enumerate(self.content["columns"]):
            field = Field(entry["path"], entry["dtype"], tuple(entry["shape"]), entry["encoding"], entry["feature"])
            self.columns[field.path] = IndexedColumn(i, field.with_meaning(entry), entry["per_episode"])
        self.starts: Array = self._map(_STARTS, np.int64, (-1,))
        self.packets = self._map(_PACKETS, INDEXED_PACKET, (-1,))
        self._maps = {path: tuple(self._parts(column)) for path, column in self.columns.items()}

    def _incomplete(self, name: str) -> IncompleteIndexError:
        return IncompleteIndexError(f"{storage.join(self.directory, name)} is damaged: open the dataset again")

    def __reduce__(self) -> tuple[Any, ...]:
        return StepIndex, (self.directory,)

    def __len__(self) -> int:
        return int(self.content["steps"])

    @property
    def episodes(self) -> int:
        return int(self.content["episodes"])

    @property
    def rejected(self) -> Mapping[str, int]:
        """The number of episodes that break a rule, by rule."""
        return dict(self.content["rejected"])

    @property
    def last_steps(self) -> LastSteps:
        """What the last steps of the episodes are."""
        return LastSteps(**self.content["last_steps"])

    def maps(self, path: str) -> tuple[Array, ...]:
        """The arrays of a column, by part (`_PARTS`)."""
        return self._maps[path]

    def _parts(self, column: IndexedColumn) -> Iterator[Array]:
        rows, field = self.episodes if column.per_episode else len(self), column.field
        if column.kind == "values":
            yield self._map(column.file("values"), field.numpy_dtype, (rows, *field.closed_shape))
        elif column.kind == "text":
            yield self._map(column.file("codes"), np.int32, (rows, *field.closed_shape))
            yield self._map(column.file("ends"), np.int64, (-1,))
            yield self._map(column.file("text"), np.uint8, (-1,))
        else:
            yield self._map(column.file("places"), PLACE, (rows,))
            if column.kind == "arrays":
                yield self._map(column.file("shapes"), np.int64, (rows, len(field.shape)))

    def _map(self, name: str, dtype: Any, shape: tuple[int, ...]) -> Array:
        if not self.content["sizes"][name]:  # an empty file cannot be mapped
            return np.empty(0, dtype).reshape(shape)
        with storage.open_read(storage.join(self.directory, name)) as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if len(data) > _LARGE:  # rows are read at random: without this, each brings its neighbors into memory
            data.madvise(mmap.MADV_RANDOM)
        return np.frombuffer(data, dtype).reshape(shape)
