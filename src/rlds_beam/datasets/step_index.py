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
      index.json       what the other files hold
      checksums.bin    CRC32C, uint32: of index.json, of each block of the other files but blob.bin, and of this file so
                       far; written last

A block is compared with its checksum when it is first read, and bytes in blob.bin with the checksum of their place. An
index that is damaged, also while it is used, is built again: the same input gives the same bytes.

Images stay in the files of the dataset. An episode-level field has one value for each episode instead of each step.
"""

from __future__ import annotations

import dataclasses
import json
import math
import mmap
import os
import pickle
import pwd
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, Literal, NamedTuple

import google_crc32c
import numpy as np

from rlds_beam import storage
from rlds_beam.encoding.checked_json import ANY, COUNT, TEXT, Maybe, check_json
from rlds_beam.encoding.metadata import parse_json
from rlds_beam.episodes.schema import Field
from rlds_beam.errors import RldsBeamError, UsageError
from rlds_beam.images.video_frames import Scale
from rlds_beam.reading.meaning import LastSteps
from rlds_beam.typing import Array

Kind = Literal["values", "text", "images", "arrays"]

VERSION = 5
"""Format version; bump when the files change."""

PLACE = np.dtype([("offset", "<i8"), ("size", "<u4"), ("crc", "<u4"), ("file", "<i4"), ("edit", "<u2")])
"""Where the bytes of an image are: the number of the file, the offset in it, their size, and their CRC32C.

`file` is `BLOB` for blob.bin, and `FIRST_VIDEO - v` for the frame `offset` of video v. `size` is 0 for an image of
zeros. `edit` is the number of the image's pending edits (`StepIndex.edits`), 0 for none.
"""

_LARGE = 64 << 20
"""Bytes from which a file of the index is read row by row."""

_BLOCK = 4096
"""Bytes with one checksum: a page of memory, so that verifying reads no more than the rows need."""

_VERIFIED_AT_ONCE = 1 << 20
"""Bytes up to which a file is verified as a whole."""

BLOB = -1
FIRST_VIDEO = -2

INDEXED_PACKET = np.dtype([("place", PLACE), ("time", "<i8"), ("key", "?"), ("shown", "?")])
"""A packet of a video, see `images.videos.PACKET`."""

INDEX = "index.json"
_STARTS, _PACKETS, BLOB_FILE, CHECKSUMS = "starts.bin", "packets.bin", "blob.bin", "checksums.bin"
_PARTS: Mapping[Kind, tuple[str, ...]] = {
    "values": ("values",),
    "text": ("codes", "ends", "text"),
    "images": ("places",),
    "arrays": ("places", "shapes"),
}
_SCHEMA = {
    "version": COUNT,
    "dataset": TEXT,
    "episodes": COUNT,
    "steps": COUNT,
    "files": [TEXT],
    "fitted": [ANY],
    "columns": [
        {
            "path": TEXT,
            "level": TEXT,
            "kind": TEXT,
            "dtype": TEXT,
            "shape": [Maybe(COUNT)],
            "encoding": TEXT,
            "feature": TEXT,
        }
    ],
    "videos": [{"path": TEXT, "codec": TEXT, "format": TEXT, "size": [COUNT], "base": [COUNT], "packets": COUNT}],
    "scales": {"*": ANY},
    "edits": {"*": [{"split": TEXT, "shard": COUNT, "position": COUNT, "part": COUNT, "edits": TEXT}]},
    "rejected": {"*": COUNT},
    "notes": [TEXT],
    "last_steps": {"action": TEXT, "assumed": TEXT},
    "void_datasets?": [TEXT],
    "sizes": {"*": COUNT},
    "recipe": TEXT,
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
        return storage_kind(self.field)

    def file(self, part: str) -> str:
        return f"{self.number}.{part}.bin"

    def to_json(self) -> dict[str, Any]:
        level = "episode" if self.per_episode else "step"
        return {"path": self.field.path, "level": level, "kind": self.kind, **self.field.to_json()}


def storage_kind(field: Field) -> Kind:
    """The storage of a field's values."""
    if field.holds_image_files:
        return "images"
    if field.dtype == "string":
        return "text"
    return "arrays" if None in field.shape else "values"


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
        names = [_STARTS, _PACKETS, BLOB_FILE, *(c.file(part) for c in self.columns for part in _PARTS[c.kind])]
        self._files = {name: storage.open_write(storage.below(directory, name)) for name in names}
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
                self._write(column.file("places"), self._place(value))
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

    def _place(self, located: Located) -> Array:
        places = located.places
        for row, data in located.blobs.items():
            places["offset"][row], places["file"][row] = self.add_blob(data), BLOB
        return places

    def add_blob(self, data: bytes) -> int:
        """Adds bytes to blob.bin; returns their offset."""
        offset = self.blob_size
        self._files[BLOB_FILE].write(data)
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
        described = {
            "version": VERSION,
            "episodes": self.episodes,
            "steps": self.steps,
            "columns": [column.to_json() for column in self.columns],
            **content,
        }
        seal(self._directory, described)

    def close(self) -> None:
        for file in self._files.values():
            file.close()


def seal(directory: str, content: Mapping[str, Any]) -> None:
    """Writes index.json and the checksums, and flushes all files to the disk."""
    sizes = {name: size for name, size in storage.sizes(directory).items() if name not in (INDEX, CHECKSUMS)}
    described = json.dumps({**content, "sizes": sizes}).encode() + b"\n"
    checksums = [google_crc32c.value(described)]
    for name in sizes:
        if name != BLOB_FILE:
            with storage.open_read(storage.below(directory, name)) as file:
                checksums += [google_crc32c.value(block) for block in iter(lambda: file.read(_BLOCK), b"")]
    data = np.array(checksums, "<u4").tobytes()
    storage.write_bytes(storage.below(directory, INDEX), described)
    storage.write_bytes(storage.below(directory, CHECKSUMS), data + _crc(data))
    storage.sync(directory)


def _crc(data: bytes) -> bytes:
    return int(google_crc32c.value(data)).to_bytes(4, "little")


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
    scale: Scale | None = None
    edits: dict[str, Any] | None = None


class _Mapped(NamedTuple):
    """A file in memory.

    Attributes:
      array: its content.
      data: its bytes; None if there are none, or all are verified.
      verified: for each block, whether it is verified.
      stamp: the stamp of the file.
    """

    array: Array
    data: mmap.mmap | None
    verified: Array
    stamp: storage.Stamp


class CheckedArray:
    """A memory-mapped array whose blocks are compared with their checksums when they are first read. Thread-safe.

    Args:
      index: the index, which is built again if the file is damaged.
      name: the file.
      dtype, shape: those of the array.
      checksums: the checksum of each block.
    """

    def __init__(self, index: StepIndex, name: str, dtype: np.dtype[Any], shape: tuple[int, ...], checksums: Array):
        self._index, self._name, self._dtype, self._shape = index, name, dtype, shape
        self._checksums, self._lock = checksums, threading.Lock()
        self._row = dtype.itemsize * math.prod(shape[1:])
        self._offsets = np.array([*range(0, max(self._row - 1, 0), _BLOCK), max(self._row - 1, 0)])  # in all its blocks
        self._mapped = self._map()

    def __len__(self) -> int:
        return self._shape[0]

    def __getitem__(self, rows: Any) -> Array:
        """The values in these rows: a slice, or an array of indices from 0 on."""
        for _ in range(3):  # damage, damage in a file that was changed since it was mapped, and what was built again
            mapped = self._mapped
            if mapped.data is None or self._verify(mapped, mapped.data, rows):
                return mapped.array[rows]  # type: ignore[no-any-return]
            with self._lock:
                if self._mapped is mapped:
                    self._index.replace(self._damage_error(mapped.stamp))
                    self._mapped = self._map()
        raise self._damage_error(mapped.stamp)

    def _verify(self, mapped: _Mapped, data: mmap.mmap, rows: Any) -> bool:
        """Verifies the blocks of rows that are not yet verified; False if one is damaged."""
        row = self._row
        if len(data) <= _VERIFIED_AT_ONCE:
            blocks = np.arange(len(self._checksums))
        elif isinstance(rows, slice):
            first, stop, _ = rows.indices(len(self))
            blocks = np.arange(first * row // _BLOCK, -(-max(first, stop) * row // _BLOCK))
        else:
            starts = rows.ravel() * row
            blocks = (starts[:, None] + self._offsets).ravel() // _BLOCK
        wanted = blocks[~mapped.verified[blocks]]
        for block in np.unique(wanted).tolist() if len(wanted) else ():
            if google_crc32c.value(data[block * _BLOCK : (block + 1) * _BLOCK]) != self._checksums[block]:
                return False
            mapped.verified[block] = True
        if len(data) <= _VERIFIED_AT_ONCE and self._mapped is mapped:
            self._mapped = mapped._replace(data=None)
        return True

    def _map(self) -> _Mapped:
        file, stamp = self._index.open(self._name)
        with file:
            size = stamp[1]
            if size != math.prod(self._shape) * self._dtype.itemsize or len(self._checksums) != -(-size // _BLOCK):
                raise self._damage_error(stamp)
            verified = np.zeros(len(self._checksums), bool)
            if not size:  # an empty file cannot be mapped
                return _Mapped(np.empty(self._shape, self._dtype), None, verified, stamp)
            data = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
        if size > _LARGE:  # rows are read at random: without this, each brings its neighbors into memory
            data.madvise(mmap.MADV_RANDOM)
        return _Mapped(np.frombuffer(data, self._dtype).reshape(self._shape), data, verified, stamp)

    def _damage_error(self, stamp: storage.Stamp) -> DamagedIndexError:
        return DamagedIndexError(self._index.directory, self._name, stamp)


class DamagedIndexError(UsageError):
    """A file of an index is missing, damaged, of another index, or of a user who does not own the cache.

    Attributes:
      name: its name.
      stamp: its stamp when it was read; None if it is missing.
    """

    def __init__(self, directory: str, name: str, stamp: storage.Stamp | None):
        super().__init__(f"{storage.join(directory, name)} is damaged: remove {directory}, and open it again")
        self.name, self.stamp = name, stamp


Rebuild = Callable[[str, "storage.Stamp | None"], None]
"""Builds an index again unless the file of this name no longer has this stamp, because another process has done so."""


class StepIndex:
    """An index on disk, memory-mapped. Picklable: another process maps the same files.

    Attributes:
      directory: its directory.
      files: the files of the dataset that hold images.
      edits: for each column of edited images, the records whose columns have each of the pending edits; see `PLACE`.
      content: the content of index.json.
    """

    def __init__(self, directory: str, rebuild: Rebuild | bytes | None = None):
        """Opens an index.

        Args:
          directory: its directory.
          rebuild: builds it, perhaps pickled; None if a damaged index is an error.

        Raises:
          UsageError: the index is damaged, and cannot be built again.
        """
        self.directory, self._rebuild = directory, rebuild
        self._checksums: Array | None = None
        try:
            self._load()
        except DamagedIndexError as damaged:
            self.replace(damaged)
            self._load()

    def _load(self) -> None:
        described, stamp = self._read(INDEX)
        checksums, _ = self._read(CHECKSUMS)
        sound = len(checksums) >= 8 and len(checksums) % 4 == 0 and checksums[-4:] == _crc(checksums[:-4])
        if not sound or checksums[:4] != _crc(described):
            raise DamagedIndexError(self.directory, INDEX, stamp)
        of_blocks = np.frombuffer(checksums[4:-4], "<u4")
        path = storage.join(self.directory, INDEX)
        self.content = check_json(parse_json(described, path), _SCHEMA, path)
        of_this = self.content["recipe"] == os.path.basename(self.directory)
        if self.content["version"] != VERSION or not of_this:
            raise DamagedIndexError(self.directory, INDEX, stamp)
        self.files: list[str] = self.content["files"]
        self.edits: Mapping[str, Sequence[Mapping[str, Any]]] = self.content["edits"]
        self.columns = {column.field.path: column for column in _columns(self.content["columns"])}
        self._blocks = dict[str, Array]()
        for name, size in self.content["sizes"].items():
            if name != BLOB_FILE:
                self._blocks[name], of_blocks = np.split(of_blocks, [-(-size // _BLOCK)])
        # Opens all files, which checks their sizes.
        self.starts: Array = self._map(_STARTS, np.int64, (self.episodes + 1,))[:]
        self.packets = self._map(_PACKETS, INDEXED_PACKET, (sum(video["packets"] for video in self.content["videos"]),))
        self._maps = {path: tuple(self._parts(column)) for path, column in self.columns.items()}
        file, stamp = self.open(BLOB_FILE)
        file.close()
        if stamp[1] != self.content["sizes"][BLOB_FILE]:
            raise DamagedIndexError(self.directory, BLOB_FILE, stamp)
        self._checksums = np.frombuffer(checksums[4:-4], "<u4")

    def __reduce__(self) -> tuple[Any, ...]:
        rebuild = self._rebuild
        if callable(rebuild):
            try:
                rebuild = pickle.dumps(rebuild)
            except (pickle.PicklingError, AttributeError, TypeError):  # connectors of a notebook
                rebuild = None
        return StepIndex, (self.directory, rebuild)

    def __len__(self) -> int:
        return int(self.content["steps"])

    @property
    def other_owner(self) -> str | None:
        """The user who built the index and owns the cache, if it is neither root nor the user of this process."""
        owner = os.stat(storage.join(self.directory, INDEX)).st_uid
        if owner in (0, os.geteuid()):
            return None
        try:
            return pwd.getpwuid(owner).pw_name
        except KeyError:
            return f"user {owner}"

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

    @property
    def void_datasets(self) -> list[str] | None:
        """As in `Source`."""
        found: list[str] | None = self.content.get("void_datasets")
        return found

    @property
    def blob(self) -> str:
        """The path of blob.bin."""
        return storage.join(self.directory, BLOB_FILE)

    def maps(self, path: str) -> tuple[CheckedArray, ...]:
        """The arrays of a column, by part (`_PARTS`)."""
        return self._maps[path]

    def replace(self, damaged: DamagedIndexError) -> None:
        """Has a damaged index built again, unless another thread or process has done so.

        Raises:
          UsageError: this process cannot build it; the next `open_dataset` will.
        """
        if isinstance(self._rebuild, bytes):
            self._rebuild = pickle.loads(self._rebuild)
        if self._rebuild is None:
            if damaged.stamp == storage.stamp(storage.join(self.directory, damaged.name)):
                storage.discard(storage.join(self.directory, INDEX))  # so that it will be found damaged
            raise damaged
        assert callable(self._rebuild)
        self._rebuild(damaged.name, damaged.stamp)

        if self._checksums is not None and self._read(CHECKSUMS)[0][4:-4] != self._checksums.tobytes():
            raise RldsBeamError(f"{self.directory} was built again, and differs: open the dataset again")

    def _parts(self, column: IndexedColumn) -> Iterator[CheckedArray]:
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

    def _map(self, name: str, dtype: Any, shape: tuple[int, ...]) -> CheckedArray:
        dtype, size = np.dtype(dtype), self.content["sizes"].get(name, -1)
        if -1 in shape:
            shape = (size // dtype.itemsize,)
        return CheckedArray(self, name, dtype, shape, self._blocks.get(name, np.empty(0, "<u4")))

    def open(self, name: str) -> tuple[BinaryIO, storage.Stamp]:
        """A file of the index, and its stamp. Raises DamagedIndexError if it is missing or not to be trusted."""
        try:
            file = storage.open_read(path := storage.join(self.directory, name))
        except OSError as error:
            raise DamagedIndexError(self.directory, name, storage.stamp(path)) from error
        status = os.fstat(file.fileno())
        stamp = storage.make_stamp(status)
        cache = os.path.dirname(os.path.dirname(self.directory))
        if status.st_uid not in (0, os.geteuid(), os.stat(cache).st_uid):
            file.close()
            raise DamagedIndexError(self.directory, name, stamp)
        return file, stamp

    def _read(self, name: str) -> tuple[bytes, storage.Stamp]:
        file, stamp = self.open(name)
        with file:
            return file.read(), stamp


def _columns(described: Sequence[Mapping[str, Any]]) -> Iterator[IndexedColumn]:
    for i, entry in enumerate(described):
        field = Field(entry["path"], entry["dtype"], tuple(entry["shape"]), entry["encoding"], entry["feature"])
        yield IndexedColumn(i, field.with_meaning(entry), entry["level"] == "episode")
