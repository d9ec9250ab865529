"""Write a range's frames to Parquet, and fill in the final numbers when all ranges are finished.

`index`, `episode_index` and `task_index` count from the first frame of the dataset, but a range knows only its own
frames, so it counts from its first one. Each row group stores these columns as one page of unencoded numbers, which
`renumber` overwrites in place; the file keeps its size:

    [ header: maximum, minimum, ... ][ number, number, ... ]
    ^ data_page_offset                                      ^ + total_compressed_size

The minimum and maximum, by which readers skip row groups, are also in the footer. Pages have no checksums, since those
would change with the numbers.
"""

from __future__ import annotations

import functools
import io
import re
import struct
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from rlds_beam import storage
from rlds_beam.encoding.parquet_files import verified_parquet
from rlds_beam.errors import RldsBeamError
from rlds_beam.formats.lerobot.features import LerobotFeature
from rlds_beam.formats.lerobot.frames import NUMBERED, LerobotFrames, frames_schema, frames_table
from rlds_beam.formats.lerobot.range_facts import report_damage
from rlds_beam.output.files import compute_checksum
from rlds_beam.output.scratch import ScratchDirectory
from rlds_beam.output.shards import ShardWriter
from rlds_beam.typing import Array

if TYPE_CHECKING:
    import pyarrow as pa


_BOUNDED = ("index", "episode_index")
"""Numbers in rising order: the bounds of a row group are its first and last."""

_BOUNDS = re.compile(rb"\x18\x08(.{8})\x18\x08(.{8})(?:\x16\x00)?[\x28\x38]\x08(.{8})\x18\x08(.{8})", re.DOTALL)
"""The bounds of integers in Thrift's compact protocol: maximum and minimum, maybe the number of nulls, maximum and
minimum again; each is 8 bytes after its field's header and length."""

_FOOTER_END = 8
"""Bytes after the footer: its size, and `PAR1`."""

ROW_GROUP_BYTES = 1 << 20
"""Row group size: a group ends after the episode that reaches it, so long episodes get their own, as in LeRobot."""

_MAX_ROWS = 1 << 14
"""Maximum rows of a row group: more might take several pages."""

_MAX_PAGE_BYTES = 64 << 20

_MAX_GROUP_BYTES = 1 << 30
"""Maximum bytes of several episodes held at once: an Arrow column holds twice as much."""

_WRITE_BYTES = 1 << 20
"""Bytes written at once."""

_MAX_HEADER_BYTES = 4096
"""Maximum size of a page header."""


class FramesFile:
    """Appends frames to a shard as a Parquet file."""

    def __init__(self, shard: ShardWriter, features: Sequence[LerobotFeature]):
        import pyarrow.parquet

        self._shard, self._features, self._schema = shard, features, frames_schema(features)
        schema = self._schema
        self._sink = _Sink(self._shard)
        leaves = [leaf for field in schema for leaf in _leaves(field.name, field.type)]
        images = [leaf for leaf in leaves if leaf.endswith((".bytes", ".path")) and leaf not in schema.names]
        plain = [*NUMBERED, *images]
        self._writer = pyarrow.parquet.ParquetWriter(
            self._sink,
            schema,
            use_dictionary=[leaf for leaf in leaves if leaf not in plain] or False,
            compression={leaf: "none" if leaf in plain else "snappy" for leaf in leaves},
            write_statistics=list(_BOUNDED),
            data_page_size=_MAX_PAGE_BYTES,
            write_page_checksum=False,
        )
        self._held: list[tuple[LerobotFrames, object]] = []
        self._bytes = self._rows = 0

    def add(self, frames: LerobotFrames, key: object) -> None:
        """Adds the frames of an episode."""
        if self._bytes + frames.bytes > _MAX_GROUP_BYTES:
            self.end_group()
        self._held.append((frames, key))
        self._bytes += frames.bytes
        self._rows += frames.length
        if self._bytes >= ROW_GROUP_BYTES or self._rows >= _MAX_ROWS:
            self.end_group()

    def end_group(self) -> None:
        """Ends the row group."""
        if self._held:
            most = max(1, min(_MAX_ROWS, self._rows * _MAX_PAGE_BYTES // max(1, self._bytes)))
            table = frames_table(self._schema, self._features, [frames for frames, _ in self._held])
            self._writer.write_table(table, row_group_size=most)
        for frames, key in self._held:
            self._shard.write((), frames.length, key)
        self._held, self._bytes, self._rows = [], 0, 0

    def close(self) -> int:
        """Completes the file. Returns its size."""
        self.end_group()
        self._writer.close()
        self._sink.flush()
        return self._sink.tell()

    def abort(self) -> None:
        """Stops writing. Does nothing after `close`."""
        self._sink.discards = True  # the writer writes a footer when closed
        self._writer.close()


def _leaves(name: str, kind: pa.DataType) -> list[str]:
    """The paths of a column's values in a Parquet file."""
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return [leaf for field in kind for leaf in _leaves(f"{name}.{field.name}", field.type)]
    if isinstance(kind, pa.ListType | pa.LargeListType | pa.FixedSizeListType):
        return _leaves(f"{name}.list.element", kind.value_type)
    return [name]


class _Sink(io.RawIOBase):
    """A shard as a writable file. Collects the many small writes of pyarrow."""

    def __init__(self, shard: ShardWriter):
        super().__init__()
        self._shard, self._size = shard, 0
        self._parts: list[Any] = []
        self._held = 0
        self.discards = False

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._parts.append(data)
        self._held += len(data)
        self._size += len(data)
        if self._held >= _WRITE_BYTES:
            self.flush()
        return len(data)

    def flush(self) -> None:
        if self._parts and not self.discards:
            self._shard.write(self._parts, 0)
        self._parts, self._held = [], 0

    def tell(self) -> int:
        return self._size


def renumber_file(path: str, numbers: Mapping[str, Array]) -> str:
    """Writes the final numbers into a finished file and returns its checksum. Args: see `renumber`."""
    if storage.scheme(path) is None:
        with report_damage(path), storage.open_update(path) as file:
            renumber(file, numbers)
        return compute_checksum(path)
    with report_damage(path), storage.open_read(path) as file:
        content = io.BytesIO(file.read())
        renumber(content, numbers)
    with ShardWriter(path) as writer:
        writer.write([content.getbuffer()], 0)
        return writer.commit().checksum


def renumber(file: BinaryIO, numbers: Mapping[str, Array]) -> None:
    """Writes the final numbers into a finished file, open for reading and writing. Can be repeated.

    Args:
      numbers: for each of `NUMBERED`, the number of each frame.

    Raises:
      RldsBeamError: the file stores the numbers in another way.
    """
    import pyarrow.parquet

    metadata = pyarrow.parquet.read_metadata(file)
    columns = {metadata.schema.column(i).path: i for i in range(metadata.num_columns)}
    bounds: list[tuple[int, int]] = []
    first = 0
    for group in (metadata.row_group(i) for i in range(metadata.num_row_groups)):
        for name in NUMBERED:
            column = group.column(columns[name])
            values = np.ascontiguousarray(numbers[name][first : first + group.num_rows], np.dtype("<i8"))
            start, stop = column.data_page_offset, column.data_page_offset + column.total_compressed_size
            if column.compression != "UNCOMPRESSED" or not 0 < stop - values.nbytes - start <= _MAX_HEADER_BYTES:
                raise _other_pages()
            file.seek(stop - values.nbytes)
            file.write(values.tobytes())
            if name in _BOUNDED:
                bounds.append((int(values[0]), int(values[-1])))
                _write_bounds(file, start, stop - values.nbytes, bounds[-1:])
                following = group.column(columns[name] + 1).data_page_offset
                if following > stop:  # pyarrow before 16 repeats the footer's entry after a column
                    _write_bounds(file, stop, following, bounds[-1:])
        first += group.num_rows
    end = file.seek(0, io.SEEK_END) - _FOOTER_END
    _write_bounds(file, end - metadata.serialized_size, end, bounds)


def _write_bounds(file: BinaryIO, start: int, stop: int, bounds: Sequence[tuple[int, int]]) -> None:
    """Overwrites the bounds in a part of a file, (minimum, maximum) in order. Raises RldsBeamError for other counts."""
    file.seek(start)
    content = file.read(stop - start)
    places = list(_BOUNDS.finditer(content))
    if len(places) != len(bounds):
        raise _other_pages()
    edited = bytearray(content)
    for match, (low, high) in zip(places, bounds, strict=True):
        for place, number in enumerate((high, low, high, low), 1):
            edited[match.start(place) : match.end(place)] = struct.pack("<q", number)
    file.seek(start)
    file.write(edited)


@functools.cache
def check_renumbering() -> None:
    """Renumbers a small file and reads it back.

    Raises:
      RldsBeamError: the installed version of pyarrow stores the numbers or their bounds in another way.
    """
    numbers = {"index": 70 + np.arange(5), "episode_index": 7 + np.arange(5) // 2, "task_index": np.arange(5)[::-1]}
    with ScratchDirectory() as directory:
        path = storage.below(directory, "frames.parquet")
        with ShardWriter(path) as shard:
            writer = FramesFile(shard, ())
            for rows in (3, 2):
                frames = {name: np.arange(rows) for name in ("frame_index", *NUMBERED)}
                writer.add(LerobotFrames({"timestamp": np.arange(rows, dtype=np.float32), **frames}, rows), "")
                writer.end_group()
            writer.close()
            shard.commit()
        renumber_file(path, numbers)
        with storage.open_read(path) as file:
            read = verified_parquet(file)
            table = read.read(use_threads=False)
    groups = [read.metadata.row_group(i) for i in range(read.num_row_groups)]
    places = [read.schema_arrow.get_field_index(name) for name in _BOUNDED]
    bounds = [[(s.min, s.max) for s in (group.column(place).statistics for place in places)] for group in groups]
    same = all(table[name].to_pylist() == values.tolist() for name, values in numbers.items())
    if not same or bounds != [[(70, 72), (7, 8)], [(73, 74), (8, 9)]]:
        raise _other_pages()


def _other_pages() -> RldsBeamError:
    import pyarrow as pa

    return RldsBeamError(
        f"--to=lerobot: pyarrow {pa.__version__} writes Parquet pages in a way that rlds-beam does not "
        "support: install another version"
    )
