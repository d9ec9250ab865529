"""Opening Parquet files that others wrote: what they promise is compared with their size before anything is decoded."""

from __future__ import annotations

from typing import Any

UNREADABLE = (LookupError, OSError, TypeError, ValueError)
"""What pyarrow raises for damaged files, and for columns that are missing or of other types."""

_FREE = 10_000_000
"""Values and bytes that a file of any size may have."""

_MOST_VALUES = 64
"""Values for each byte of a file: a run of equal ones takes almost nothing."""

_MOST_RATIO = 2000
"""What compression may save."""


def open_parquet(file: Any, size: int) -> Any:
    """A `pyarrow.parquet.ParquetFile` of an open file (or its path) of `size` bytes.

    Raises:
      OSError, ValueError: it is no Parquet file; or it promises more rows, values or bytes than it could hold.
    """
    import pyarrow.parquet

    opened = pyarrow.parquet.ParquetFile(file)
    check_promises(opened.metadata, size)
    return opened


def check_promises(metadata: Any, size: int) -> None:
    """Raises OSError if the metadata of a Parquet file of `size` bytes promise more than it could hold."""
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    rows = sum(group.num_rows for group in groups)
    values = sum(group.column(i).num_values for group in groups for i in range(group.num_columns))
    data = sum(group.total_byte_size for group in groups)
    if rows != metadata.num_rows or min([0, *(group.num_rows for group in groups)]) < 0:
        raise OSError(f"it promises {metadata.num_rows:,} rows, and its row groups have {rows:,}")
    if max(rows, values) > _FREE + _MOST_VALUES * size or data > _FREE + _MOST_RATIO * size:
        raise OSError(f"it promises {rows:,} rows of {values:,} values and {data:,} bytes in a file of {size:,} bytes")
