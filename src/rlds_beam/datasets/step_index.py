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
      packets.bin      the packets of videos (`indexed_videos`)
      blob.bin         the bytes that are in no file of the dataset, for example images that a connector edited
      index.json       what the other files hold; written last

Images stay in the files of the dataset. An episode-level field has one value for each episode instead of each step.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import mmap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from rlds_beam import storage
from rlds_beam.encoding.checked_json import ANY, COUNT, TEXT, Maybe, check_json, parse_json
from rlds_beam.episodes.schema import Field
from rlds_beam.errors import UsageError

Array = np.ndarray[Any, Any]
Kind = Literal["values", "text", "images", "arrays"]

VERSION = 2
"""Format version; bump when the files change."""

PLACE = np.dtype([("offset", "<i8"), ("size", "<u4"), ("crc", "<u4"), ("file", "<i4"), ("edit", "<u2")])
"""Where the bytes of an image are: the number of the file, the offset in it, their size, and their CRC32C.

`file` is `BLOB` for blob.bin, and `FIRST_VIDEO - v` for the frame `offset` of video v. `size` is 0 for an image of
zeros. `edit` is the number of the image's pending edits (`StepIndex.edits`), 0 for none.
"""

_LARGE = 64 << 20
"""Bytes from which a file of the index is read row by row."""

BLOB = -1
FIRST_VIDEO = -2

INDEXED_PACKET = np.dtype([("place", PLACE), ("time", "<i8"), ("key", "?"), ("shown", "?")])
"""A packet of a video, see `images.videos.PACKET`."""

INDEX = "index.json"
_STARTS, _PACKETS, _BLOB_FILE = "starts.bin", "packets.bin", "blob.bin"
_PARTS: Mapping[Kind, tuple[str, ...]] = {
    "values": ("values",), "text": ("codes", "ends", "text"), "images": ("places",), "arrays": ("places", "shapes"),
}  # fmt: skip
_IMAGES = ("png", "jpeg")
_SCHEMA = {
    "version": COUNT, "dataset": TEXT, "episodes": COUNT, "steps": COUNT, "files": [TEXT], "fitted": [ANY],
    "columns": [{"path": TEXT, "level": TEXT, "kind": TEXT, "dtype": TEXT, "shape": [Maybe(COUNT)], "encoding": TEXT,
                 "feature": TEXT}],
    "videos": [{"path": TEXT, "codec": TEXT, "format": TEXT, "size": [COUNT], "base": [COUNT], "packets": COUNT}],
    "scales": {"*": ANY},
    "edits": {"*": [{"split": TEXT, "shard": COUNT, "position": COUNT, "part": COUNT}]},
    "rejected": {"*": COUNT}, "notes": [TEXT], "*": ANY,
}  # fmt: skip


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
        return kind_of(self.field)

    def file(self, part: str) -> str:
        return f"{self.number}.{part}.bin"

    def to_json(self) -> dict[str, Any]:
        level = "episode" if self.per_episode else "step"
        return {"path": self.field.path, "level": level, "kind": self.kind, **self.field.to_json()}


def kind_of(field: Field) -> Kind:
    """How the values of a field are stored."""
    if field.encoding in _IMAGES:
        return "images"
    if field.dtype == "string":
        return "text"
    return "arrays" if None in field.shape else "values"


class IndexWriter:
    """Writes an index into a local directory, a few episodes at a time.

    Args:
      directory: an empty directory.
      steps, metadata: the fields of a step and of an episode.
    """

    def __init__(self, directory: str, steps: Sequence[Field], metadata: Sequence[Field]):
        fields = [(field, False) for field in steps] + [(field, True) for field in metadata]
        self.columns = [IndexedColumn(i, field, level) for i, (field, level) in enumerate(fields)]
        self._directory = directory
        names = [_STARTS, _PACKETS, _BLOB_FILE, *(c.file(part) for c in self.columns for part in _PARTS[c.kind])]
        self._files = {name: storage.open_write(storage.below(directory, name)) for name in names}
        self._tables: dict[int, dict[bytes, int]] = {c.number: {} for c in self.columns if c.kind == "text"}
        self._blob = self.steps = self.episodes = 0
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
                self._write(column.file("places"), self._placed(value))
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

    def _placed(self, located: Located) -> Array:
        places = located.places
        for row, data in located.blobs.items():
            places["offset"][row], places["file"][row] = self.add_blob(data), BLOB
        return places

    def add_blob(self, data: bytes) -> int:
        """Adds bytes to blob.bin; returns their offset."""
        offset = self._blob
        self._files[_BLOB_FILE].write(data)
        self._blob += len(data)
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
        described = {
            "version": VERSION, "episodes": self.episodes, "steps": self.steps,
            "columns": [column.to_json() for column in self.columns], **content,
        }  # fmt: skip
        storage.write_text(storage.below(self._directory, INDEX), json.dumps(described) + "\n")

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
    """

    places: Array
    blobs: Mapping[int, bytes] = dataclasses.field(default_factory=dict)
    shapes: Array | None = None


class StepIndex:
    """An index on disk, memory-mapped. Picklable: another process maps the same files.

    Attributes:
      directory: its directory.
      files: the files of the dataset that hold images.
      edits: for each column of edited images, the records whose columns have each of the pending edits; see `PLACE`.
      content: the content of index.json.
    """

    def __init__(self, directory: str):
        """Raises UsageError if the index is damaged."""
        self.directory = directory
        path = storage.join(directory, INDEX)
        self.content = check_json(parse_json(storage.read_small(path), path), _SCHEMA, path)
        if self.content["version"] != VERSION:
            raise UsageError(f"{path} has version {self.content['version']}, not {VERSION}: remove {directory}")
        self.files: list[str] = self.content["files"]
        self.edits: Mapping[str, Sequence[Mapping[str, Any]]] = self.content["edits"]
        self.columns = {column.field.path: column for column in _columns(self.content["columns"])}
        _ = self.starts, self.packets, [self.maps(path) for path in self.columns]  # checks the sizes

    def __reduce__(self) -> tuple[Any, ...]:
        return StepIndex, (self.directory,)

    def __len__(self) -> int:
        return int(self.content["steps"])

    @property
    def episodes(self) -> int:
        return int(self.content["episodes"])

    @functools.cached_property
    def starts(self) -> Array:
        """The index of each episode's first step, then the number of steps: int64 [E + 1]."""
        starts = self._map(_STARTS, np.int64, (self.episodes + 1,))
        if starts[0] != 0 or starts[-1] != len(self):
            raise self._damaged(_STARTS)
        return starts

    @functools.cached_property
    def packets(self) -> Array:
        """The packets of all videos, `INDEXED_PACKET` [P]."""
        count = sum(video["packets"] for video in self.content["videos"])
        return self._map(_PACKETS, INDEXED_PACKET, (count,))

    @property
    def rejected(self) -> Mapping[str, int]:
        """The number of episodes that break a rule, by rule."""
        return dict(self.content["rejected"])

    @functools.cached_property
    def blob(self) -> str:
        """The path of blob.bin."""
        return storage.join(self.directory, _BLOB_FILE)

    def maps(self, path: str) -> tuple[Array, ...]:
        """The arrays of a column, by part (`_PARTS`)."""
        return self._maps[path]

    @functools.cached_property
    def _maps(self) -> dict[str, tuple[Array, ...]]:
        return {path: tuple(self._parts(column)) for path, column in self.columns.items()}

    def _parts(self, column: IndexedColumn) -> Iterator[Array]:
        rows, field = self.episodes if column.per_episode else len(self), column.field
        if column.kind == "values":
            yield self._map(column.file("values"), field.numpy_dtype, (rows, *field.closed_shape))
        elif column.kind == "text":
            codes = self._map(column.file("codes"), np.int32, (rows, *field.closed_shape))
            ends = self._map(column.file("ends"), np.int64, (-1,))
            text = self._map(column.file("text"), np.uint8, (-1,))
            if (int(ends[-1]) if len(ends) else 0) != len(text):
                raise self._damaged(column.file("ends"))
            yield from (codes, ends, text)
        else:
            yield self._map(column.file("places"), PLACE, (rows,))
            if column.kind == "arrays":
                yield self._map(column.file("shapes"), np.int64, (rows, len(field.shape)))

    def _map(self, name: str, dtype: Any, shape: tuple[int, ...]) -> Array:
        path, dtype = storage.join(self.directory, name), np.dtype(dtype)
        size = storage.size(path) if storage.exists(path) else -1
        count = math.prod(shape) if -1 not in shape else size // dtype.itemsize
        if size < 0 or size != count * dtype.itemsize:
            raise self._damaged(name)
        if not count:  # an empty file cannot be mapped
            return np.empty([max(n, 0) for n in shape], dtype)
        with open(path, "rb") as file:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if size > _LARGE:  # rows are read at random: without this, each brings its neighbors into memory
            content.madvise(mmap.MADV_RANDOM)
        return np.frombuffer(content, dtype).reshape(shape)

    def _damaged(self, name: str) -> UsageError:
        return UsageError(
            f"{storage.join(self.directory, name)} is damaged: remove {self.directory}, and open it again"
        )


def _columns(described: Sequence[Mapping[str, Any]]) -> Iterator[IndexedColumn]:
    for i, one in enumerate(described):
        field = Field(one["path"], one["dtype"], tuple(one["shape"]), one["encoding"], one["feature"])
        yield IndexedColumn(i, field, one["level"] == "episode")
