"""Opens Parquet files. Their pages are compared with their checksums, if the writer wrote any.

The metadata of an untrusted file is also compared with the file size before anything is decoded.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from typing import Any

from rlds_beam.errors import RldsBeamError
from rlds_beam.text import shorten

UNREADABLE = (LookupError, OSError, TypeError, ValueError)
"""Errors that pyarrow raises for damaged files, and for columns that are missing or have other types."""

_FREE = 10_000_000
"""Values and bytes allowed for a file of any size."""

_MAX_VALUES = 64
"""Maximum values per byte of a file; a run of equal values takes almost no space."""

_MAX_RATIO = 2000
"""Maximum compression ratio."""

_MAX_REPEATED_BYTES = 512 << 20
"""Bytes that a row group may have in memory besides those that it stores: a dictionary's value may be in every row."""

_BATCH_ROWS = 64


def verified_parquet(file: Any) -> Any:
    """Opens a `pyarrow.parquet.ParquetFile`, from a file or its path, that verifies checksums.

    Raises:
      OSError, ValueError: not a Parquet file. Reading a damaged page raises OSError.
    """
    import pyarrow.parquet

    return pyarrow.parquet.ParquetFile(file, page_checksum_verification=True)


@contextlib.contextmanager
def naming_damage(path: str) -> Iterator[None]:
    """Raises RldsBeamError, which names the file, if what is read from it is damaged."""
    try:
        yield
    except UNREADABLE as error:
        raise RldsBeamError(
            f"cannot read {path}: {shorten(error)}; fetch the file again, or convert the dataset again"
        ) from error


def open_parquet(file: Any, size: int) -> Any:
    """Opens a `pyarrow.parquet.ParquetFile` from a file (open, or its path) of `size` bytes.

    Raises:
      OSError, ValueError: not a Parquet file, or its metadata claims more rows, values, or bytes than it can hold.
    """
    opened = verified_parquet(file)
    check_promises(opened.metadata, size)
    return opened


def check_promises(metadata: Any, size: int) -> None:
    """Raises OSError if the metadata of a Parquet file of `size` bytes claims more than it can hold."""
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    rows = sum(group.num_rows for group in groups)
    values = sum(group.column(i).num_values for group in groups for i in range(group.num_columns))
    data = sum(group.total_byte_size for group in groups)
    if rows != metadata.num_rows or min([0, *(group.num_rows for group in groups)]) < 0:
        raise OSError(f"the metadata claims {metadata.num_rows:,} rows, but the row groups have {rows:,}")
    if max(rows, values) > _FREE + _MAX_VALUES * size or data > _FREE + _MAX_RATIO * size:
        raise OSError(f"the metadata claims {rows:,} rows, {values:,} values, {data:,} bytes in {size:,} bytes of file")


def read_group(opened: Any, group: int, columns: list[str] | None = None) -> Any:
    """Reads a row group of a `pyarrow.parquet.ParquetFile` as a table.

    Raises:
      OSError: it is damaged, or dictionaries make it much larger than what it stores.
    """
    import pyarrow as pa

    metadata = opened.metadata.row_group(group)
    chunks = [metadata.column(i) for i in range(metadata.num_columns)]
    most = _MAX_REPEATED_BYTES + 2 * metadata.total_byte_size
    if not any(
        chunk.has_dictionary_page and chunk.num_values * chunk.total_uncompressed_size > most for chunk in chunks
    ):
        return opened.read_row_group(group, columns=columns)
    batches, total = [], 0
    for batch in opened.iter_batches(_BATCH_ROWS, [group], columns):
        total += batch.nbytes
        if total > most:
            raise OSError(f"row group {group} repeats values to more than {most:,} bytes")
        batches.append(batch)
    return pa.Table.from_batches(batches) if batches else opened.read_row_group(group, columns=columns)


def read_all(opened: Any, columns: list[str] | None = None) -> Any:
    """Reads all row groups like `read_group`."""
    import pyarrow as pa

    if not opened.num_row_groups:
        return opened.read(columns=columns)
    return pa.concat_tables([read_group(opened, group, columns) for group in range(opened.num_row_groups)])


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
                span = start, start + column.total_compressed_size
                chunks.setdefault(column.path_in_schema, []).append(span if column.compression in codecs else None)
    return chunks
