"""Opens Parquet files. Their pages are compared with their checksums, if the writer wrote any."""

from __future__ import annotations

import contextlib
import io
import itertools
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, BinaryIO, cast

from rlds_beam import storage
from rlds_beam.errors import RldsBeamError
from rlds_beam.remote_files import RangeReader
from rlds_beam.text import shorten

UNREADABLE = (LookupError, OSError, TypeError, ValueError)
"""Errors that pyarrow raises for damaged files, and for columns that are missing or have other types."""

_KEPT_BYTES = 512 << 20
"""Bytes that a `SpanReader` keeps."""

_SPAN_BLOCK = 8 << 20
"""Bytes of a span that a request reads; there are several at once."""

_SMALL_READ = 64 << 10
"""Bytes below which a read of a file is none of a span, unless they were requested."""

_TOGETHER = 64 << 10
"""The largest gap in bytes between two spans that is read instead of skipped."""


def verified_parquet(file: BinaryIO) -> Any:
    """Opens a `pyarrow.parquet.ParquetFile` that verifies checksums.

    Arrow opens a local file itself, and gets a copy of bytes in memory: a thread of Arrow that still releases a buffer
    of Python when the interpreter ends aborts the process. For other files, read with `use_threads=False`.

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
    return pyarrow.parquet.ParquetFile(source, page_checksum_verification=True)


@contextlib.contextmanager
def naming_damage(path: str) -> Iterator[None]:
    """Raises RldsBeamError, which names the file, if what is read from it is damaged."""
    try:
        yield
    except UNREADABLE as error:
        raise RldsBeamError(
            f"cannot read {path}: {shorten(error)}; fetch the file again, or convert the dataset again"
        ) from error


class SpanReader:
    """Reads spans of objects, for example the chunks of columns, and keeps the last ones, up to a number of bytes.

    So a chunk that a `ParquetFile` decodes (`open`), and in which images are searched, is downloaded once. Thread-safe.
    """

    def __init__(self, most: int = _KEPT_BYTES):
        self._most, self._lock = most, threading.Lock()
        self._readers: dict[str, RangeReader] = {}
        self._kept: OrderedDict[tuple[str, int, int], _Span] = OrderedDict()

    def open(self, path: str) -> BinaryIO:
        """Opens an object as a file whose large reads are spans; a local file as it is."""
        file = storage.open_read(path)
        return file if storage.scheme(path) is None else cast(BinaryIO, _SpanFile(self, path, file))

    def request(self, path: str, spans: Iterable[tuple[int, int]]) -> None:
        """Starts to read these spans of an object, at the same time; those next to each other together."""
        joined: list[tuple[int, int]] = []
        for start, stop in sorted(spans):
            if joined and start - joined[-1][1] <= _TOGETHER:
                start, stop = joined[-1][0], max(stop, joined.pop()[1])
            joined.append((start, stop))
        for start, stop in joined:
            if not self.has(path, start, stop):
                self._request(path, start, stop)

    def read(self, path: str, start: int, stop: int) -> bytes:
        """The bytes of an object from `start` to `stop`."""
        span = self._find(path, start, stop) or self._request(path, start, stop)
        try:
            data = span.read()
        except BaseException:
            with self._lock:
                self._kept.pop((path, span.start, span.stop), None)
            raise
        return data[start - span.start : stop - span.start]

    def has(self, path: str, start: int, stop: int) -> bool:
        """Whether `read` needs no new request."""
        return self._find(path, start, stop) is not None

    def forget(self) -> None:
        """Drops what is kept."""
        with self._lock:
            self._kept.clear()

    def _find(self, path: str, start: int, stop: int) -> _Span | None:
        with self._lock:
            for key, span in self._kept.items():  # pyarrow reads what is next to a chunk together with it
                if key[0] == path and span.start <= start and stop <= span.stop:
                    self._kept.move_to_end(key)
                    return span
        return None

    def _request(self, path: str, start: int, stop: int) -> _Span:
        if path not in self._readers:
            self._readers[path] = RangeReader(storage.open_store(path), path)
        bounds = [*range(start, stop, _SPAN_BLOCK), stop]
        blocks = [self._readers[path].request(*pair) for pair in itertools.pairwise(bounds)]
        span = _Span(start, stop, blocks)
        with self._lock:
            self._kept[path, start, stop] = span
            while sum(stop - start for _, start, stop in self._kept) > self._most and len(self._kept) > 1:
                self._kept.popitem(last=False)
        return span


class _Span:
    """Bytes of an object from `start` to `stop`, which were requested in blocks."""

    def __init__(self, start: int, stop: int, blocks: Sequence[Future[bytes]]):
        self.start, self.stop, self._blocks = start, stop, blocks
        self._data: bytes | None = None

    def read(self) -> bytes:
        if self._data is None:
            self._data = b"".join(block.result() for block in self._blocks)
            self._blocks = ()
        return self._data


def request_chunks(file: Any, metadata: Any, groups: Iterable[int], columns: Collection[str]) -> None:
    """Starts to read the chunks of some columns at the same time, if the file is in a bucket (`SpanReader.open`)."""
    for group in map(metadata.row_group, groups) if isinstance(file, _SpanFile) else ():
        chunks = map(group.column, range(group.num_columns))
        wanted = (c for c in chunks if any(f"{c.path_in_schema}.".startswith(f"{name}.") for name in columns))
        file.request(map(_find_chunk, wanted))


def _find_chunk(column: Any) -> tuple[int, int]:
    start = column.dictionary_page_offset or column.data_page_offset
    return start, start + column.total_compressed_size


class _SpanFile(io.RawIOBase):
    """See `SpanReader.open`."""

    def __init__(self, spans: SpanReader, path: str, file: BinaryIO):
        super().__init__()
        self._spans, self._path, self._file = spans, path, file
        self._size = file.seek(0, io.SEEK_END)
        file.seek(0)

    def request(self, spans: Iterable[tuple[int, int]]) -> None:
        """See `SpanReader.request`."""
        self._spans.request(self._path, spans)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def read(self, size: int = -1) -> bytes:
        start = self._file.tell()
        if 0 <= size < _SMALL_READ and not self._spans.has(self._path, start, start + size):
            return self._file.read(size)
        stop = self._size if size < 0 else min(start + size, self._size)
        data = self._spans.read(self._path, start, stop) if start < stop else b""
        self._file.seek(start + len(data))
        return data

    def close(self) -> None:
        self._file.close()
        super().close()


_shared: list[SpanReader] = []


@contextlib.contextmanager
def share_spans() -> Iterator[SpanReader]:
    """Until the block ends, all that read the chunks of files in a bucket (`open_shared`) share what they read."""
    reader = (_shared[-1:] or [SpanReader()])[0]  # another thread may end its block now
    _shared.append(reader)
    try:
        yield reader
    finally:
        _shared.pop()


def open_shared(path: str) -> BinaryIO:
    """Opens a file for reading; within `share_spans`, with the shared reader."""
    shared = _shared[-1:]
    return shared[0].open(path) if shared else storage.open_read(path)


def byte_chunks(metadata: Any, codecs: Collection[str]) -> dict[str, list[tuple[int, int] | None]]:
    """By the path of each column of bytes, those of each row group in the file, as (start, stop).

    Args:
      codecs: the names of compressions; None stands for a row group with another one.
    """
    chunks: dict[str, list[tuple[int, int] | None]] = {}
    for group in (metadata.row_group(i) for i in range(metadata.num_row_groups)):
        for column in (group.column(i) for i in range(group.num_columns)):
            if column.physical_type == "BYTE_ARRAY":
                span = _find_chunk(column) if column.compression in codecs else None
                chunks.setdefault(column.path_in_schema, []).append(span)
    return chunks
