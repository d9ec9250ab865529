"""Restore the footer of a Parquet file whose writer was killed.

    PAR1 | row group 0: a chunk of pages for each column | row group 1: ... | (footer)

Row groups are complete in the file when they are written. What pages it has follows from their headers; the footer is
that of an empty file with other numbers. Headers and footer are Thrift's compact protocol:
https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rlds_beam.encoding.wire import varint

if TYPE_CHECKING:
    import pyarrow as pa

_MAGIC = b"PAR1"
_BYTE, _INTEGERS, _LONG, _DOUBLE, _BINARY, _LIST, _STRUCT = 3, (4, 5, 6), 6, 7, 8, 9, 12  # types of Thrift
_DATA = 5  # the field of a page header that says how many values a data page has


def restore_footer(content: bytes, schema: pa.Schema, sizes: Sequence[int]) -> bytes:
    """The complete row groups of a file without a footer, with one.

    Args:
      content: the file; pyarrow wrote it with its defaults.
      schema: its columns.
      sizes: the number of values per row of each Parquet column; a struct has one for each of its fields.

    Raises:
      ValueError: it has a footer, or no complete row group.
    """
    import pyarrow as pa
    import pyarrow.parquet

    empty = io.BytesIO()
    pyarrow.parquet.write_table(pa.Table.from_pylist([{}], schema), empty)
    empty.seek(-8 - pyarrow.parquet.read_metadata(empty).serialized_size, io.SEEK_END)
    footer = _read(empty, _STRUCT)
    groups = list(_row_groups(list(_pages(content)), sizes))
    if not groups or content.endswith(_MAGIC):
        raise ValueError("it has no complete row group without a footer")
    (template,) = footer[4][1][1]
    footer[3] = _LONG, sum(rows for rows, _ in groups)
    footer[4] = _LIST, (_STRUCT, [_row_group(template, rows, chunks) for rows, chunks in groups])
    written = _write(_STRUCT, footer)
    return content[: groups[-1][1][-1][-1].end] + written + len(written).to_bytes(4, "little") + _MAGIC


class _Page(NamedTuple):
    """A page: its bytes in the file with its header, their number uncompressed, and its values (0 in a dictionary)."""

    start: int
    end: int
    size: int
    values: int


def _pages(content: bytes) -> Iterator[_Page]:
    """The pages that are complete."""
    stream, start = io.BytesIO(content), len(_MAGIC)
    while start < len(content):
        stream.seek(start)
        try:
            header, body = _read(stream, _STRUCT), stream.tell()
            end = body + header[3][1]
            values = header[_DATA][1][1][1] if _DATA in header else 0
            page = _Page(start, end, body - start + header[2][1], values)
        except (LookupError, TypeError, ValueError, RecursionError):
            return
        if not body <= end <= len(content):
            return
        yield page
        start = end


def _row_groups(pages: Sequence[_Page], sizes: Sequence[int]) -> Iterator[tuple[int, list[Sequence[_Page]]]]:
    """The rows of each row group, and the pages of its columns, which have this number of values per row."""
    counts = np.cumsum([page.values for page in pages])
    first = 0
    while first < len(pages):
        before = counts[first - 1] if first else 0
        for rows in (counts[first:] - before) // sizes[0]:  # the pages of the first column may end with each of them
            ends = before + rows * np.cumsum(sizes)
            stops = np.searchsorted(counts, ends) + 1
            if rows and stops[-1] <= len(pages) and (counts[stops - 1] == ends).all():
                yield int(rows), [pages[start:stop] for start, stop in itertools.pairwise((first, *stops))]
                first = stops[-1]
                break
        else:
            return


def _row_group(template: dict[int, Any], rows: int, chunks: Sequence[Sequence[_Page]]) -> dict[int, Any]:
    """A row group of the footer: `RowGroup`, `ColumnChunk`, and `ColumnMetaData` of parquet.thrift."""
    columns = []
    for (_, about), chunk in zip((column[3] for column in template[1][1][1]), chunks, strict=True):
        data = next(page for page in chunk if page.values)
        numbers = {5: sum(page.values for page in chunk), 6: sum(page.size for page in chunk)}
        numbers |= {7: chunk[-1].end - chunk[0].start, 9: data.start}
        numbers |= {11: chunk[0].start} if data != chunk[0] else {}
        kept = {number: about[number] for number in (1, 2, 3, 4)}  # type, encodings, path, codec
        columns.append({2: (_LONG, 0), 3: (_STRUCT, kept | {key: (_LONG, n) for key, n in numbers.items()})})
    size = sum(page.size for chunk in chunks for page in chunk)
    return {1: (_LIST, (_STRUCT, columns)), 2: (_LONG, size), 3: (_LONG, rows)}


# Thrift's compact protocol: a struct is {number of the field: (type, value)}, a list (type of the elements, values).


def _read(stream: io.BytesIO, kind: int) -> Any:
    """The next value, of this type. Raises LookupError or ValueError if there is none."""
    if kind in (1, 2):
        return kind == 1
    if kind in _INTEGERS:
        value = _read_varint(stream)
        return (value >> 1) ^ -(value & 1)
    if kind in (_BYTE, _DOUBLE, _BINARY):
        size = {_BYTE: 1, _DOUBLE: 8}.get(kind) or _read_varint(stream)
        if len(content := stream.read(size)) < size:
            raise ValueError("the file ends")
        return content
    if kind == _LIST:
        head = stream.read(1)[0]
        count = head >> 4 if head < 0xF0 else _read_varint(stream)
        return head & 15, [_read(stream, head & 15) for _ in range(count)]
    if kind != _STRUCT:
        raise ValueError(f"unknown type {kind}")
    fields, number = dict[int, Any](), 0
    while head := stream.read(1)[0]:
        number = number + (head >> 4) if head >> 4 else _read(stream, _LONG)
        fields[number] = head & 15, _read(stream, head & 15)
    return fields


def _read_varint(stream: io.BytesIO) -> int:
    value = 0
    for shift in range(0, 70, 7):
        byte = stream.read(1)[0]
        value |= (byte & 127) << shift
        if byte < 128:
            return value
    raise ValueError("a number of more than 64 bits")


def _write(kind: int, value: Any) -> bytes:
    if kind in (1, 2):
        return b""
    if kind in _INTEGERS:
        return varint(value << 1 if value >= 0 else ~(value << 1))
    if kind == _BINARY:
        return varint(len(value)) + bytes(value)
    if kind == _LIST:
        of, values = value
        head = bytes([len(values) << 4 | of]) if len(values) < 15 else bytes([0xF0 | of]) + varint(len(values))
        return head + b"".join(_write(of, value) for value in values)
    if kind != _STRUCT:
        return bytes(value)
    parts, last = list[bytes](), 0
    for number, (own, content) in sorted(value.items()):
        parts += [bytes([number - last << 4 | own]), _write(own, content)]
        last = number
    return b"".join(parts) + b"\0"
