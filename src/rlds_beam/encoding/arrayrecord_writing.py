"""Writes ArrayRecord files with the `array_record` package; local files only."""

from __future__ import annotations

from typing import Any

from rlds_beam import storage
from rlds_beam.errors import UsageError, needs

_ONE_BY_ONE = "group_size:1,snappy"
"""Compress each record on its own, as TFDS does, so that a random read decompresses one record. For rows of a few
hundred bytes, the default, zstd, takes twice as long and saves no space."""


def check_writable(path: str) -> None:
    """Raises UsageError for a remote path, and MissingExtraError without the array_record package."""
    if storage.scheme(path) is not None:
        raise UsageError(f"cannot write {path}: ArrayRecord files are written to local disks only")
    with needs("arrayrecord", "writing ArrayRecord files needs the array_record package"):
        import array_record  # noqa: F401


def open_writer(path: str) -> Any:
    """Opens a writer with `write(record)` and `close()`; raises the same errors as `check_writable`."""
    check_writable(path)
    from array_record.python.array_record_module import ArrayRecordWriter

    return ArrayRecordWriter(path, _ONE_BY_ONE)
