"""Opens and writes Parquet files. Their pages are compared with their checksums, if the writer wrote any."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any, BinaryIO

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


@contextlib.contextmanager
def naming_damage(path: str) -> Iterator[None]:
    """Raises RldsBeamError, which names the file, if what is read from it is damaged."""
    try:
        yield
    except UNREADABLE as error:
        raise RldsBeamError(
            f"cannot read {path}: {shorten(error)}; fetch the file again, or convert the dataset again"
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
