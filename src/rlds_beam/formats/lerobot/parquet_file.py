"""Write a range's frames to Parquet, and fill in the final numbers when all ranges are finished.

`index`, `episode_index` and `task_index` count from the first frame of the dataset. A range knows only its own, so it
writes them with a mark in the upper half of each number, unencoded and uncompressed:

    index, of the range    7AC391E5 00000000    7AC391E5 00000001    ...
    index, in the end      00000000 0001E240    00000000 0001E241    ...

The positions of these numbers are kept: values are at the end of their page; the minimum and maximum of each row group,
by which readers skip row groups, and the checksum of the page are in its header, the bounds also in the footer.
`renumber` writes the final numbers and checksums into the finished file, which keeps its size; it can be repeated.
`pages.check_pages` checks that pyarrow writes files this way.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from rlds_beam import storage
from rlds_beam.errors import RldsBeamError
from rlds_beam.formats.lerobot import page_checksums
from rlds_beam.formats.lerobot.frames import FrameColumns, LerobotFrames
from rlds_beam.formats.lerobot.tables import NUMBERED
from rlds_beam.output.checksums import checksum_of

if TYPE_CHECKING:
    import pyarrow as pa

Array = np.ndarray[Any, Any]

MARKS = {"index": 0x7AC391E5 << 32, "episode_index": 0x7AC391E6 << 32, "task_index": 0x7AC391E7 << 32}
"""Mark added to the numbers of a range."""

_MARKS_EACH = 16
"""Marks of a column, which differ in the upper 16 bits: a page gets one with which its checksum fills its place."""

BOUNDED = ("index", "episode_index")
"""Columns in rising order, in the range and the dataset: a row group's bounds are its first and last value."""

ROW_GROUP_BYTES = 1 << 20
"""Row group size: a group ends after the episode that reaches it, so long episodes get their own, as in LeRobot."""

_MOST_ROWS = 1 << 14
"""Maximum rows of a row group: more might take several pages."""

_MOST_BYTES = 64 << 20

_MOST_GROUP_BYTES = 1 << 30
"""Maximum bytes of several episodes held at once: an Arrow column holds twice as much."""

_HEADER = 4096
"""Maximum size of a page header."""


class Destination(Protocol):
    """Where a file is written: a `ShardWriter`."""

    def write(self, buffers: Iterable[bytes | memoryview], records: int, key: object = None) -> None: ...


class FramesFile:
    """Appends frames to a shard as a Parquet file."""

    def __init__(self, shard: Destination, columns: FrameColumns):
        import pyarrow.parquet

        self._shard, self._columns, schema = shard, columns, columns.schema
        self._sink = _Sink(self._shard)
        plain = [name for name in schema.names if name in NUMBERED]
        leaves = [leaf for field in schema for leaf in _leaves(field.name, field.type)]
        images = [leaf for leaf in leaves if leaf.endswith((".bytes", ".path")) and leaf not in schema.names]
        self._writer = pyarrow.parquet.ParquetWriter(
            self._sink, schema, use_dictionary=[leaf for leaf in leaves if leaf not in (*plain, *images)] or False,
            compression={leaf: "none" if leaf in (*plain, *images) else "snappy" for leaf in leaves},
            write_statistics=list(BOUNDED), data_page_size=_MOST_BYTES,
            write_page_checksum=True,
        )  # fmt: skip
        self._held: list[tuple[LerobotFrames, object]] = []
        self._bytes = self._rows = 0

    def add(self, frames: LerobotFrames, key: object) -> None:
        """Adds the frames of an episode."""
        if self._bytes + frames.bytes > _MOST_GROUP_BYTES:
            self.end_group()
        self._held.append((frames, key))
        self._bytes += frames.bytes
        self._rows += frames.length
        if self._bytes >= ROW_GROUP_BYTES or self._rows >= _MOST_ROWS:
            self.end_group()

    def end_group(self) -> None:
        """Ends the row group."""
        if self._held:
            most = max(1, min(_MOST_ROWS, self._rows * _MOST_BYTES // max(1, self._bytes)))
            table = _marked_pages(self._columns.table([frames for frames, _ in self._held]), most)
            self._writer.write_table(table, row_group_size=most)
            self._sink.pass_on()
        for frames, key in self._held:
            self._shard.write((), frames.length, key)
        self._held, self._bytes, self._rows = [], 0, 0

    def close(self) -> tuple[dict[str, Array], int]:
        """Completes the file. Returns the positions of its numbers, for `edits_of`, and its size."""
        self.end_group()
        self._sink.footer = self._sink.tell()
        self._writer.close()
        self._sink.pass_on()
        return self._sink.places(), self._sink.tell()

    def abort(self) -> None:
        """Stops writing. Does nothing after `close`."""
        self._sink.discards = True  # the writer writes a footer when closed
        self._writer.close()


def _marked_pages(table: pa.Table, rows: int) -> pa.Table:
    """The table with other marks in the pages (of `rows` rows) whose checksum would not fill its place."""
    import pyarrow as pa

    for place, name in ((table.schema.get_field_index(name), name) for name in NUMBERED):
        values = table[name].to_numpy().copy()
        for page in (values[first : first + rows] for first in range(0, len(values), rows)):
            for _ in range(_MARKS_EACH):
                if page_checksums.fills_its_place(page.tobytes()):
                    break
                page += 1 << 48
        table = table.set_column(place, table.schema.field(place), pa.array(values))
    return table


def _leaves(name: str, kind: pa.DataType) -> list[str]:
    """The paths of a column's values in a Parquet file."""
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return [leaf for field in kind for leaf in _leaves(f"{name}.{field.name}", field.type)]
    if isinstance(kind, pa.ListType | pa.LargeListType | pa.FixedSizeListType):
        return _leaves(f"{name}.list.element", kind.value_type)
    return [name]


class _Sink(io.RawIOBase):
    """A shard as a writable file; keeps small pieces, which are page headers."""

    def __init__(self, shard: Destination):
        super().__init__()
        self._shard, self._at = shard, 0
        self._kept: dict[int, bytes] = {}
        self._waiting: list[bytes] = []
        self.discards = False
        self.footer: int | None = None

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        piece = bytes(data)  # no copy: pyarrow passes `bytes`
        self._waiting.append(piece)
        if len(piece) <= _HEADER or self.footer is not None:
            self._kept[self._at] = piece
        else:
            self.pass_on()
        self._at += len(piece)
        return len(piece)

    def pass_on(self) -> None:
        """Writes what was received since the last call."""
        waiting, self._waiting = self._waiting, []
        if not self.discards:
            self._shard.write(waiting, 0)

    def tell(self) -> int:
        return self._at

    def places(self) -> dict[str, Array]:
        """By column, the place of each row group's values, and `bounds`: (offset, column, number).

        A place is (offset, count, bytes from the page's checksum to the values).

        Raises:
          RldsBeamError: this version of pyarrow wrote the numbers elsewhere.
        """
        import pyarrow.parquet

        assert self.footer is not None
        tail = b"".join(part for at, part in sorted(self._kept.items()) if at >= self.footer)
        metadata = pyarrow.parquet.read_metadata(io.BytesIO(tail))
        values: dict[str, list[tuple[int, int, int]]] = {name: [] for name in NUMBERED}
        bounds = _marked(tail, self.footer)
        columns = {metadata.schema.column(i).path: i for i in range(metadata.num_columns)}
        groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
        pages = {group.column(i).data_page_offset for group in groups for i in range(group.num_columns)}
        for group in groups:
            for name in NUMBERED:
                column = group.column(columns[name])
                start, size = column.data_page_offset, column.total_compressed_size - 8 * group.num_rows
                header = self._kept.get(start, b"")
                checksum = page_checksums.place_in(header)
                if len(header) != size or checksum is None:
                    raise other_pages()
                bounds += _marked(header, start)
                end = start + column.total_compressed_size
                if end not in pages:  # some versions repeat the footer's bounds here
                    bounds += _marked(self._kept.get(end, b""), end)
                values[name].append((start + size, group.num_rows, size - checksum))
        arrays = {name: np.array(places, np.int64).reshape(-1, 3) for name, places in values.items()}
        return {**arrays, "bounds": np.array(bounds, np.int64).reshape(-1, 3)}


def _marked(data: bytes, offset: int) -> list[tuple[int, int, int]]:
    """The marked numbers: (offset, which of `NUMBERED`, number in the range)."""
    marks = []
    for name in BOUNDED:
        for mark in (struct.pack("<q", MARKS[name] + (i << 48))[4:] for i in range(_MARKS_EACH)):
            at = data.find(mark)
            while at >= 0:
                marks.append((offset + at - 4, NUMBERED.index(name), int.from_bytes(data[at - 4 : at], "little")))
                at = data.find(mark, at + 4)
    return marks


def edits_of(places: Mapping[str, Array], numbers: Mapping[str, Array]) -> list[tuple[int, bytes]]:
    """The edits that write the final numbers, (offset, bytes) in order.

    Args:
      places: the positions from `FramesFile.close`.
      numbers: for each of `NUMBERED`, the number of each frame; for the bounded ones, the number within the range plus
        a constant.
    """
    edits: list[tuple[int, bytes]] = []
    for name in NUMBERED:
        values = np.ascontiguousarray(numbers[name], np.dtype("<i8"))
        first = 0
        for offset, count, back in places[name].tolist():
            page = values[first : first + count].tobytes()
            edits += [(offset - back, page_checksums.encoded(page)), (offset, page)]
            first += count
    for offset, column, number in places["bounds"].tolist():
        edits.append((offset, struct.pack("<q", int(numbers[NUMBERED[column]][0]) + number)))
    edits.sort()
    return edits


def edited(content: bytes, edits: Iterable[tuple[int, bytes]]) -> bytearray:
    """The content with these edits applied."""
    whole = bytearray(content)
    for offset, part in edits:
        whole[offset : offset + len(part)] = part
    return whole


def renumber(path: str, places: Mapping[str, Array], numbers: Mapping[str, Array]) -> str:
    """Writes the final numbers into a finished file and returns its checksum. Can be repeated. Args: see `edits_of`."""
    edits = edits_of(places, numbers)
    if storage.scheme(path) is None:
        with storage.open_update(path) as file:
            for offset, content in edits:
                file.seek(offset)
                file.write(content)
    else:
        with storage.open_read(path) as file:
            whole = edited(file.read(), edits)
        storage.write_bytes(path, bytes(whole))
    return checksum_of(path)


def other_pages() -> RldsBeamError:
    """The error for a version of pyarrow that writes pages in another way."""
    import pyarrow as pa

    return RldsBeamError(
        f"--to=lerobot: pyarrow {pa.__version__} writes Parquet pages in a way that rlds-beam does not "
        "support: install another version"
    )
