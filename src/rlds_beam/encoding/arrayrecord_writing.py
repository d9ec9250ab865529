"""Writing an ArrayRecord file, through the `array_record` package; local files only."""

from __future__ import annotations

from typing import Any

from rlds_beam import storage
from rlds_beam.errors import UsageError, needs

_ONE_BY_ONE = "group_size:1,snappy"
"""Each record is compressed on its own, as TFDS has it, so that a random read takes one. With the default, zstd, rows
of a few hundred bytes take twice as long to write, and are no smaller."""


def check_writable(path: str) -> None:
    """Raises UsageError for a remote path, MissingExtraError without the array_record package."""
    if storage.scheme(path) is not None:
        raise UsageError(f"cannot write {path}: ArrayRecord files are written to local disks only")
    with needs("arrayrecord", "writing ArrayRecord files needs the package array_record"):
        import array_record  # noqa: F401


def open_writer(path: str) -> Any:
    """A writer of a file, with `write(record)` and `close()`; raises as `check_writable` does."""
    check_writable(path)
    from array_record.python.array_record_module import ArrayRecordWriter

    return ArrayRecordWriter(path, _ONE_BY_ONE)
