"""Opens and writes Parquet files. Their pages are compared with their checksums, if the writer wrote any."""

from __future__ import annotations

import contextlib
import io
import itertools
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

from rlds_beam.encoding.wire import read_varint, varint
from rlds_beam.errors import RldsBeamError
from rlds_beam.text import shorten

if TYPE_CHECKING:
    import pyarrow as pa

_SINK_BYTES = 64 << 10  # larger ones would stay in memory that the next pages could use

UNREADABLE = (LookupError, OSError, TypeError, ValueError)
"""Errors that pyarrow raises for damaged files, and for columns that are missing or have other types."""


def verified_parquet(file: BinaryIO) -> Any:
    """Opens a `pyarrow.parquet.ParquetFile` that verifies checksums.

    A thread of Arrow that still releases a buffer of Python when the interpreter ends aborts the process. So Arrow
    opens a local file itself, gets a copy of bytes in memory, and reads a file in a bucket without threads of its own:
    without `pre_buffer`, and with `use_threads=False`, which every caller passes.

    Raises:
      OSError, ValueError: not a Parquet file. Reading a damaged page raises OSError.
    """
    import pyarrow as pa
    import pyarrow.parquet

    source: Any = file
    if isinstance(file, io.BytesIO):
        content = pa.allocate_buffer(len(file.getbuffer()))
        memoryview(content).cast("B")[:] = file.getbuffer()
        source = pa.BufferReader(content)
    elif isinstance(name := getattr(getattr(file, "raw", None), "name", None), str):
        source = pa.OSFile(name)
    return pyarrow.parquet.ParquetFile(source, pre_buffer=False, page_checksum_verification=True)


# Footers and headers of pages: https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift
_STRUCTS = b"\x19\xfc"  # in Thrift's compact protocol: the next field is a list of structs
_COLUMN = b"\x26\x00\x1c\x15\x00\x19\x05\x19\x08\x15\x02"  # a column as far as its codec, SNAPPY; types: see schema


def restore_footer(content: bytes, schema: pa.Schema, sizes: Sequence[int]) -> bytes:
    """The complete row groups of a file whose writer was killed, with a footer.

    Args:
      content: the file; pyarrow wrote it with its defaults.
      schema: its columns.
      sizes: the number of values per row of each Parquet column, not 0; a struct has one for each of its fields.
    """
    import pyarrow.parquet

    pages, first, groups = _find_pages(content), 0, list[bytes]()
    for stop in pages:  # the first column of a row group may end with each of them
        rows = (stop - first) // sizes[0]
        counts = [first + rows * size for size in itertools.accumulate(sizes, initial=0)]
        if rows > 0 and all(count in pages for count in counts):
            group = _STRUCTS + varint(len(sizes))
            for size, (start, end) in zip(sizes, itertools.pairwise(pages[count] for count in counts), strict=True):
                group += _COLUMN + _number(1, rows * size)
                group += _number(1, 0) + _number(1, end - start) + _number(2, start) + b"\0\0"
            groups.append(group + _number(1, pages[counts[-1]] - pages[first]) + _number(1, rows) + b"\0")
            first = counts[-1]
    empty = io.BytesIO()
    pyarrow.parquet.ParquetWriter(empty, schema).close()
    before, after = empty.getvalue()[4:-8].split(b"\x16\x00\x19\x0c")  # fields 3 and 4: no rows, no row groups
    footer = before + _number(1, first // sum(sizes)) + _STRUCTS + varint(len(groups)) + b"".join(groups) + after
    return content[: pages[first]] + footer + len(footer).to_bytes(4, "little") + b"PAR1"


def _find_pages(content: bytes) -> dict[int, int]:
    """The end of each complete page, by the number of values that end there. Dictionaries have none."""
    at, values, ends = 4, 0, {0: 4}
    with contextlib.suppress(LookupError, TypeError, ValueError, RecursionError):  # the end of the file, or damage
        while at <= len(content):
            ends.setdefault(values, at)
            header, at = _read_struct(content, at)
            at += header[3]
            values += header[5][1] if 5 in header else 0
    return ends


def _read_struct(content: bytes, at: int) -> tuple[dict[int, Any], int]:
    """The numbers and structs in a struct, and its end. Raises LookupError or ValueError if it is cut."""
    fields, number = dict[int, Any](), 0
    while head := content[at]:
        number, kind, at = number + (head >> 4), head & 15, at + 1
        if kind == 12:  # a struct
            fields[number], at = _read_struct(content, at)
        elif kind > 2:  # a number, or 8, bytes; 1 and 2 are true and false
            value, at = read_varint(content, at, len(content))
            fields[number] = value >> 1  # no count is negative
            at += value if kind == 8 else 0
    return fields, at + 1


def _number(step: int, value: int) -> bytes:
    """A number, as the field that is `step` fields after the one before."""
    return bytes([step << 4 | 6]) + varint(value << 1)


@contextlib.contextmanager
def naming_damage(path: str) -> Iterator[None]:
    """Raises RldsBeamError, which names the file, if what is read from it is damaged."""
    try:
        yield
    except UNREADABLE as error:
        raise RldsBeamError(
            f"cannot read {path}: {shorten(error)}; fetch it again, or convert the dataset again"
        ) from error


def byte_chunks(metadata: Any, codecs: Collection[str]) -> dict[str, list[tuple[int, int] | None]]:
    """By the path of each column of bytes, those of each row group in the file, as (start, stop).

    Args:
      codecs: the names of compressions; None stands for a row group with another one.
    """
    chunks: dict[str, list[tuple[int, int] | None]] = {}
    for group in (metadata.row_group(i) for i in range(metadata.num_row_groups)):
        for column in (group.column(i) for i in range(group.num_columns)):
            if column.physical_type == "BYTE_ARRAY":
                start = column.dictionary_page_offset or column.data_page_offset
                span = (start, start + column.total_compressed_size) if column.compression in codecs else None
                chunks.setdefault(column.path_in_schema, []).append(span)
    return chunks


def leaf_paths(name: str, kind: pa.DataType) -> list[str]:
    """The paths of a column's values in a Parquet file, inside its structs and lists."""
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return [leaf for field in kind for leaf in leaf_paths(f"{name}.{field.name}", field.type)]
    if pa.types.is_nested(kind):
        return leaf_paths(f"{name}.list.element", kind.value_type)
    return [name]


class ShardSink(io.RawIOBase):
    """A writer of a shard (`output.shards.ShardWriter`) as a file. Collects the many small writes of pyarrow.

    Attributes:
      discards: whether it drops what is written.
    """

    def __init__(self, shard: Any):
        super().__init__()
        self._shard, self._size, self.discards = shard, 0, False
        self._parts: list[Any] = []
        self._held = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._parts.append(data)
        self._held += len(data)
        self._size += len(data)
        if self._held >= _SINK_BYTES:
            self.flush()
        return len(data)

    def flush(self) -> None:
        if self._parts and not self.discards:
            self._shard.write(self._parts, 0)
        self._parts, self._held = [], 0

    def tell(self) -> int:
        return self._size
