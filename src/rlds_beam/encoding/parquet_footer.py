"""Restore the footer of a Parquet file whose writer was killed.

    PAR1 | row group 0: a chunk of pages for each column | row group 1: ... | (footer)

Row groups are complete in the file when they are written, and headers of pages say how long these are. The footer is
that of an empty file, with row groups that hold what readers need: where a column begins and ends, and how many values
it has. Headers and footer are in Thrift's compact protocol:
https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds_beam.encoding.wire import read_varint, varint

if TYPE_CHECKING:
    import pyarrow as pa

_MAGIC = b"PAR1"
_BOOLEANS, _INT32, _INT64, _BINARY, _LIST, _STRUCT = (1, 2), 5, 6, 8, 9, 12  # types of Thrift
_SNAPPY = 1
_EMPTY = b"\x16\x00\x19\x0c"  # fields 3 and 4 of a footer: no rows, no row groups


def restore_footer(content: bytes, schema: pa.Schema, sizes: Sequence[int]) -> bytes:
    """The complete row groups of a file without a footer, with one.

    Args:
      content: the file; pyarrow wrote it with its defaults.
      schema: its columns.
      sizes: the number of values per row of each Parquet column; a struct has one for each of its fields.

    Raises:
      ValueError: it has a footer, or no complete row group.
    """
    import pyarrow.parquet

    end, total, groups = 0, 0, list[bytes]()
    for rows, places in _row_groups(content, sizes):
        columns = []
        for size, (start, stop) in zip(sizes, itertools.pairwise(places), strict=True):
            about = _number(1, 0, _INT32) + _list([], _INT32) + _list([], _BINARY) + _number(1, _SNAPPY, _INT32)
            about += _number(1, rows * size)
            about += _number(1, stop - start) + _number(1, stop - start)  # uncompressed, which nobody asks; compressed
            about += _number(2, start)
            columns.append(_number(2, 0) + bytes([1 << 4 | _STRUCT]) + about + b"\0\0")
        groups.append(_list(columns, _STRUCT) + _number(1, places[-1] - places[0]) + _number(1, rows) + b"\0")
        end, total = places[-1], total + rows
    if not groups or content.endswith(_MAGIC):
        raise ValueError("it has no complete row group without a footer")
    empty = io.BytesIO()
    pyarrow.parquet.ParquetWriter(empty, schema).close()
    before, after = empty.getvalue()[len(_MAGIC) : -8].split(_EMPTY)
    footer = before + _number(1, total) + _list(groups, _STRUCT) + after
    return content[:end] + footer + len(footer).to_bytes(4, "little") + _MAGIC


def _row_groups(content: bytes, sizes: Sequence[int]) -> Iterator[tuple[int, list[int]]]:
    """The rows of each complete row group, and where its columns begin and the last one ends."""
    ends, values = np.array([(len(_MAGIC), 0), *_pages(content)]).T
    counts, first = np.cumsum(values), 0
    while first < len(ends) - 1:
        for rows in (counts[first + 1 :] - counts[first]) // sizes[0]:  # the first column may end with each of them
            wanted = counts[first] + rows * np.cumsum(sizes)
            stops = np.searchsorted(counts, wanted)
            if rows and stops[-1] < len(counts) and (counts[stops] == wanted).all():
                yield int(rows), ends[[first, *stops]].tolist()
                first = stops[-1]
                break
        else:
            return


def _pages(content: bytes) -> Iterator[tuple[int, int]]:
    """The end of each complete page, and the number of its values; a dictionary counts as 0."""
    at = len(_MAGIC)
    while at < len(content):
        try:
            header, at = _read_struct(content, at)
            at, values = at + header[3], header.get(5, {1: 0})[1]  # the bytes behind the header, and of a data page
        except (LookupError, TypeError, ValueError, RecursionError):
            return
        if at > len(content):
            return
        yield at, values


def _read_struct(content: bytes, at: int) -> tuple[dict[int, Any], int]:
    """The numbers and structs in a struct, and its end. Raises LookupError or ValueError if it is cut."""
    fields, number = dict[int, Any](), 0
    while head := content[at]:
        number, kind, at = number + (head >> 4), head & 15, at + 1
        if kind == _STRUCT:
            fields[number], at = _read_struct(content, at)
        elif kind in (_INT32, _INT64, _BINARY):
            value, at = read_varint(content, at, len(content))
            fields[number] = value >> 1  # no count is negative
            at += value if kind == _BINARY else 0
        elif kind not in _BOOLEANS:
            raise ValueError(f"unknown type {kind}")
    return fields, at + 1


def _number(step: int, value: int, kind: int = _INT64) -> bytes:
    """A number, as the field that is `step` fields after the one before."""
    return bytes([step << 4 | kind]) + varint(value << 1)


def _list(values: Sequence[bytes], kind: int) -> bytes:
    """A list, as the field after the one before."""
    return bytes([1 << 4 | _LIST, 0xF0 | kind]) + varint(len(values)) + b"".join(values)
